"""`/api/v1/projects/{project_id}/issues/{number}/todos`: the todo list of an issue."""

from __future__ import annotations

from fastapi import APIRouter

from kaged.base import JsonObject
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import IN_PROJECT
from kaged.serve.http.routes.work import OPERATOR, InProject, Number
from kaged.serve.http.work_models import TodoActionIn, TodosOut
from kaged.toolbox.project.todo_tool import require_todo_params

router = APIRouter(route_class=LateRoute, prefix=IN_PROJECT, tags=["todos"])


@router.get("/issues/{number}/todos", **documented("Look at an issue's todo list", 404))
async def view(context: InProject, number: Number) -> TodosOut:
    """Return the list, without what was abandoned."""
    issue_id = await context.work.todos.issue_id(context.project_id, number)
    return TodosOut.model_validate(await context.work.todos.view(issue_id))


@router.post("/issues/{number}/todos", **documented("Change an issue's todo list", 400, 404, 409))
async def act(context: InProject, number: Number, body: TodoActionIn) -> TodosOut:
    """Do what the tool `kaged.todo` does, on any issue. Operators also drop criteria."""
    given: JsonObject = body.model_dump(mode="json", exclude_none=True)
    require_todo_params(given)
    context.require_record()
    issue_id = await context.work.todos.issue_id(context.project_id, number)
    given.setdefault("origin_agent", OPERATOR)
    done = await context.work.todos.act(issue_id, given, operator=True)
    return TodosOut.model_validate(await context.recorded(done))
