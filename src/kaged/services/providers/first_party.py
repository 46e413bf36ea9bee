"""`FirstPartyProviders`: mailboxes, calendars and HTTP APIs, made from their config sections.

    [capabilities.providers.mail]
    type = "imap"
    settings = { imap = "imap.example.org:993", smtp = "smtp.example.org:465" }

The client secret of an OAuth client is `env.OAUTH_CLIENT_SECRET`, where `${VAR}` is replaced and
nothing shows it again.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kaged.base import Clock
from kaged.config.providers import Provider, ProviderType
from kaged.services.contract import CapabilityProvider
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.mailbox import MailHost, Security
from kaged.services.providers.oauth import OAuthClient
from kaged.services.providers.oauth_server import OAuthSettings, ShortText
from kaged.services.providers.rest_description import require_base_url
from kaged.services.tls import require_ca_file

CLIENT_SECRET: Final = "OAUTH_CLIENT_SECRET"  # noqa: S105 - the name of a variable, not a secret
IDLE_S: Final = 900
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class _Linked(_Strict):
    """What every kind with accounts has: OAuth, or a password that is typed into a page."""

    oauth: OAuthSettings | None = None
    link_port: Annotated[int, Field(ge=0, le=65535)] = 0
    link_url: ShortText | None = None
    ca_file: ShortText | None = None


class _BridgePage(_Strict):
    """Where the page is that asks for the fields of a bridge's flows."""

    link_port: Annotated[int, Field(ge=0, le=65535)] = 0
    link_url: ShortText | None = None


class _SidecarSettings(_BridgePage):
    """A sidecar has what a bridge has, and an end."""

    idle_seconds: Annotated[int, Field(ge=1, le=86400)] = IDLE_S


class _Mail(_Linked):
    imap: ShortText
    smtp: ShortText | None = None
    security: Security = Security.TLS
    smtp_security: Security | None = None
    drafts_folder: ShortText = "Drafts"
    sent_folder: ShortText | None = None


class _Calendar(_Linked):
    url: ShortText


class _Rest(_Linked):
    description: ShortText | None = None
    service: ShortText | None = None
    base_url: ShortText | None = None
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] = "api"
    operations: tuple[ShortText, ...] = ()
    auth: Annotated[str, Field(pattern="^(oauth|token|header|query|basic|none)$")] = "oauth"
    auth_header: ShortText | None = None
    auth_prefix: Annotated[str, Field(max_length=64)] = ""
    auth_query: ShortText | None = None
    headers: Annotated[dict[str, ShortText], Field(max_length=16)] = {}
    sensitive: bool = True
    check_path: Annotated[str, Field(pattern="^/[!-~]*$", max_length=500)] | None = None


class FirstPartyProviders:
    """Makes the providers that come with kaged; call it with a planned section."""

    def __init__(self, clock: Clock, config_dir: Path, closing: AsyncExitStack) -> None:
        self._clock = clock
        self._config_dir = config_dir
        self._closing = closing

    def __call__(self, planned: Provider) -> CapabilityProvider:
        """Make one provider.

        Raises:
            CapabilityInvalidInput: its settings make no sense; the text names the key.
        """
        match planned.section.type:
            case ProviderType.IMAP:
                return self._mail(planned)
            case ProviderType.CALDAV:
                return self._calendar(planned)
            case ProviderType.REST:
                return self._rest(planned)
            case ProviderType.BRIDGE | ProviderType.SIDECAR as kind:
                raise CapabilityInvalidInput(f"a {kind} is a program, not a part of kaged")

    def _mail(self, planned: Provider) -> CapabilityProvider:
        from kaged.services.providers.imap_email import (  # noqa: PLC0415 - only where it is used
            EmailSettings,
            ImapEmail,
        )

        said = _read(_Mail, planned)
        security = said.smtp_security or said.security
        ca_file = self._ca_file(said)
        imap = _host(said.imap, 993, said.security, ca_file)
        smtp = None if said.smtp is None else _host(said.smtp, 465, security, ca_file)
        settings = EmailSettings(
            planned.namespace,
            imap,
            smtp,
            drafts_folder=said.drafts_folder,
            sent_folder=said.sent_folder,
            timeout_s=planned.timeout_s,
        )
        return ImapEmail(
            settings, clock=self._clock, page=self._page(said), oauth=self._oauth(said, planned)
        )

    def _calendar(self, planned: Provider) -> CapabilityProvider:
        from kaged.services.providers.caldav_calendar import (  # noqa: PLC0415 - only where used
            CalDavCalendar,
            CalendarSettings,
        )

        said = _read(_Calendar, planned)
        url = require_base_url(said.url)
        return CalDavCalendar(
            CalendarSettings(planned.namespace, url, planned.timeout_s, self._ca_file(said)),
            clock=self._clock,
            page=self._page(said),
            oauth=self._oauth(said, planned),
        )

    def _rest(self, planned: Provider) -> CapabilityProvider:
        from kaged.services.providers.http_rest import (  # noqa: PLC0415 - only where it is used
            HttpRest,
            RestSettings,
        )
        from kaged.services.providers.rest_auth import (  # noqa: PLC0415 - see above
            RestAuth,
            RestCredentials,
            require_header,
        )
        from kaged.services.providers.rest_catalogue import (  # noqa: PLC0415 - see above
            catalogue_file,
            catalogue_settings,
        )
        from kaged.services.providers.rest_description import (  # noqa: PLC0415 - see above
            load_description,
        )

        said = _read(_Rest, planned)
        if (said.description is None) == (said.service is None):
            raise CapabilityInvalidInput(
                f"capabilities.providers.{planned.name}.settings: name a description or a service"
            )
        if said.service is None:
            file = self._config_dir / Path(str(said.description)).expanduser()
        else:
            file = catalogue_file(said.service)
            # Whatever the operator says counts; a way to authorize is replaced as a whole.
            brought = catalogue_settings(said.service)
            given = said.model_dump(exclude_unset=True)
            if "auth" in given or "oauth" in given:
                brought = {key: one for key, one in brought.items() if not key.startswith("auth")}
            said = _Rest.model_validate({**brought, **given})
        settings = RestSettings(
            planned.namespace,
            said.name,
            load_description(file, base_url=said.base_url, only=said.operations),
            credentials=RestCredentials(
                RestAuth(said.auth), said.auth_header, said.auth_prefix, said.auth_query
            ),
            sensitive=said.sensitive,
            check_path=said.check_path,
            timeout_s=planned.timeout_s,
            ca_file=self._ca_file(said),
            headers={require_header(name): one for name, one in said.headers.items()},
        )
        return HttpRest(settings, page=self._page(said), oauth=self._oauth(said, planned))

    def _ca_file(self, said: _Linked) -> str | None:
        if said.ca_file is None:
            return None
        return require_ca_file(self._config_dir / Path(said.ca_file).expanduser())

    def bridge_page(self, planned: Provider) -> LinkPage:
        """Return the page for the fields of a bridge's flows. Raises CapabilityInvalidInput."""
        return self._page(_read(_BridgePage, planned))

    def sidecar(self, planned: Provider) -> tuple[LinkPage, int]:
        """Return the same page for a sidecar, and its idle time. Raises CapabilityInvalidInput."""
        said = _read(_SidecarSettings, planned)
        return self._page(said), said.idle_seconds

    def _page(self, said: _Linked | _BridgePage) -> LinkPage:
        page = LinkPage(self._clock, port=said.link_port, public_url=said.link_url)
        self._closing.push_async_callback(page.close)
        return page

    def _oauth(self, said: _Linked, planned: Provider) -> OAuthClient | None:
        if said.oauth is None:
            return None
        secret = planned.env.get(CLIENT_SECRET)
        return OAuthClient(
            said.oauth,
            clock=self._clock,
            client_secret=None if secret is None else secret.reveal(),
            timeout_s=planned.timeout_s,
            ca_file=self._ca_file(said),
        )


def _read(model: type[M], planned: Provider) -> M:
    given: dict[str, Any] = dict(planned.section.settings)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "settings"
        raise CapabilityInvalidInput(
            f"capabilities.providers.{planned.name}.settings: {place}: {first['msg']}"
        ) from None


def _host(text: str, port: int, security: Security, ca_file: str | None) -> MailHost:
    host, colon, written = text.rpartition(":")
    if not colon or not written.isdecimal():
        host, written = text, str(port)
    host = host.strip("[]")
    number = int(written)
    if not host or not 0 < number < 65536:
        raise CapabilityInvalidInput(f"not a host and port: {text[:100]!r}")
    if security is Security.PLAIN and host not in _LOOPBACK:
        raise CapabilityInvalidInput(f"{host} is not loopback: security is tls or starttls")
    return MailHost(host, number, security, ca_file)
