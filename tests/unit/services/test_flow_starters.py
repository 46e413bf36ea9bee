"""Who began a flow: kept with it, missing from flows of earlier versions, and safe to show."""

from __future__ import annotations

import msgspec
import pytest

from kaged.services.contract import AuthField, FlowStarter
from kaged.services.flow import Flow, flow_of, hidden_of
from kaged.services.providers.linkpage import LinkForm, begun_by
from kaged.store.service_rows import FlowRow

ROW = FlowRow("caf_1", "ann", "keyed.api", None, "authorization_code", None, b"", 0, 1, 2)
ANN = FlowStarter(in_person=True)


def form(*starters: FlowStarter) -> LinkForm:
    return LinkForm("Link", (), "keyed.api", "<ann>", starters)


def test_a_flow_keeps_who_began_it_and_an_older_one_says_nobody() -> None:
    fields = (AuthField("password", "Password", secret=True),)
    starters = (FlowStarter("primary", "Letters"), ANN, FlowStarter())
    flow = Flow(ROW, "http://x", None, {}, None, False, None, fields, starters)
    assert flow_of(ROW, hidden_of(flow)) == flow
    older = msgspec.json.decode(hidden_of(flow))
    del older["begun_by"]
    assert flow_of(ROW, msgspec.json.encode(older)).begun_by == ()


@pytest.mark.parametrize(
    ("starters", "said"),
    [
        ((), " It is not known who began it."),
        ((ANN,), " &lt;ann&gt; began it directly, without an agent."),
        ((FlowStarter(),), " It was begun by an agent of an unknown project."),
        (
            (FlowStarter("<b>\n&", "p" * 81),),
            f" It was begun by the agent <b>&lt;b&gt; &amp;</b> of the project <b>{'p' * 79}…</b>.",
        ),
    ],
)
def test_names_are_text_on_one_line_and_not_too_long(
    starters: tuple[FlowStarter, ...], said: str
) -> None:
    assert begun_by(form(*starters)) == said
