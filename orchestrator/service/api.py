"""REST interface of the service: each path calls a request handler, each error is an ErrorAnswer."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from dashboards.access.auth import AuthPolicy
from orchestrator.common.answer import ErrorAnswer
from orchestrator.lifecycle.create import SubmitAnswer
from orchestrator.records.summary import BestAnswer, LogsAnswer, SearchesAnswer, StatusAnswer
from orchestrator.search.lease import HELD_FIX, LeaseHeld
from orchestrator.service import event_stream
from orchestrator.service.handlers import (
    VERSION,
    AcceptedAnswer,
    HealthAnswer,
    NotReady,
    RecipeAnswer,
    RequestHandlers,
    TrialsAnswer,
)
from orchestrator.service.middleware import AuthMiddleware, error_response
from orchestrator.service.pages import PagesOf, is_page, page_routes, refusal_page, wants_page
from search_spaces.errors import ExternalError, InputError, Problem
from trials.ledger.events import EventKind

_log = logging.getLogger(__name__)

_SearchId = Annotated[
    str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$", description="A search's id, or a unique prefix of it.")
]
_Trial = Annotated[
    str, Path(pattern=r"^t[0-9]{4,9}(\.a[0-9]{1,9})?$", description="t0001 (its last attempt) or t0001.a1.")
]
_FolderPath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]
_LastEventId = Annotated[
    str | None, Header(pattern="^[0-9]{1,15}$", description="Number of the last event that was read.")
]

_WORDS = {
    400: "Bad input, with the rule and the fix.",
    401: "The token is missing or wrong (on a port).",
    403: "The Host is wrong, or the Origin is another web page (on a port).",
    404: "No such search, trial or path.",
    409: "Conflict: held by another driver, an ambiguous id, or not ready yet.",
    413: "The body is larger than 1 MiB.",
    415: "The body is not JSON.",
    500: "Internal error; the service's log has the traceback.",
    503: "Slurm, the ledger or a disk refuses or is unreachable.",
}
_OF_A_SEARCH = (400, 404, 409, 503)
_OF_A_BODY = (400, 413, 415, 503)


class _Body(BaseModel):
    """Body of a request; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SubmitRequest(_Body):
    yaml: str = Field(min_length=1, max_length=1_000_000, description="The text of a search file.")
    directory: _FolderPath = Field(description="Absolute path; base of relative paths in the file and of its work_dir.")
    set: list[Annotated[str, Field(max_length=10_000)]] = Field(
        default=[], max_length=1_000, description="Changes to the file, each key.key=value."
    )


class ResumeRequest(_Body):
    folder: _FolderPath | None = Field(default=None, description="The search's folder, if it is not in the ledger.")
    ledger_url: str | None = Field(
        default=None, max_length=4096, description="The search's ledger, if it is not the service's."
    )


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of one call, with those of every call."""
    own = sorted({*statuses, 401, 403, 500})
    return {status: {"model": ErrorAnswer, "description": _WORDS[status]} for status in own}


_ABOUT = (
    "Searches of one user: started, followed, cancelled and resumed. Bodies are JSON of at most 1 MiB. A method that a"
    " path does not have is answered with 405, an unknown path with 404."
)
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "On a port of the loopback: the text of service/token in Parlay's home, new with every start of"
        " the service. On the unix socket nothing is needed: its file's mode decides.",
    }
}
_EVENTS_PATH = "/v1/searches/{search}/events"
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Number in the journal, for Last-Event-ID."},
        "event": {"type": "string", "enum": [kind.value for kind in EventKind]},
        "data": {"type": "string", "description": "Line of the journal: a JSON object."},
    },
}


def make_app(
    handlers: RequestHandlers,
    policy: AuthPolicy,
    is_stopping: Callable[[], bool] = lambda: False,
    is_read_only: bool = False,
) -> AuthMiddleware:
    """Return the ASGI application with its authentication. `is_read_only`: its pages change nothing."""
    app = FastAPI(title="Parlay", version=VERSION, docs_url=None, redoc_url=None)
    _add_searches(app, handlers)
    _add_findings(app, handlers)
    _add_stream(app, handlers, is_stopping)
    _add_refusals(app)
    app.openapi = lambda: _openapi(app, has_token=policy.token is not None)  # type: ignore[method-assign]
    if policy.sessions is not None:
        shown = PagesOf(handlers, is_stopping, app.openapi, is_read_only)
        app.router.routes.extend(page_routes(shown, policy.sessions))
    return AuthMiddleware(app, policy)


def _add_searches(app: FastAPI, handlers: RequestHandlers) -> None:
    @app.get("/v1/health", responses=_errors())
    def health() -> HealthAnswer:
        """Identity of the service, and the number of searches it drives."""
        return handlers.health()

    @app.get("/v1/searches", responses=_errors(503))
    def searches() -> SearchesAnswer:
        """All searches of the ledger, newest first."""
        return handlers.searches()

    @app.post("/v1/searches", status_code=201, responses=_errors(*_OF_A_BODY))
    def submit(request: SubmitRequest) -> SubmitAnswer:
        """Validate a search file, create the search and drive it."""
        return handlers.submit(request.yaml, request.directory, request.set)

    @app.get("/v1/searches/{search}", responses=_errors(*_OF_A_SEARCH))
    def status(search: _SearchId) -> StatusAnswer:
        """State of a search."""
        return handlers.status(search)

    @app.post(
        "/v1/searches/{search}/cancel",
        status_code=202,
        responses=_errors(*_OF_A_SEARCH, *_OF_A_BODY),
    )
    def cancel(search: _SearchId) -> AcceptedAnswer:
        """End a search and its trials in flight; its events show when that is done."""
        return handlers.cancel(search)

    @app.post(
        "/v1/searches/{search}/resume",
        status_code=202,
        responses=_errors(*_OF_A_SEARCH, *_OF_A_BODY),
    )
    def resume(search: _SearchId, request: ResumeRequest | None = None) -> AcceptedAnswer:
        """Drive a search whose driver has gone; a search that has ended stays as it is."""
        asked = request or ResumeRequest()
        return handlers.resume(search, asked.folder, asked.ledger_url)


def _add_findings(app: FastAPI, handlers: RequestHandlers) -> None:
    @app.get("/v1/searches/{search}/trials", responses=_errors(*_OF_A_SEARCH))
    def trials(search: _SearchId) -> TrialsAnswer:
        """All trials, in the order of their proposal."""
        return handlers.trials(search)

    @app.get("/v1/searches/{search}/best", responses=_errors(*_OF_A_SEARCH))
    def best(search: _SearchId) -> BestAnswer:
        """The best layout so far."""
        return handlers.best(search)

    @app.get("/v1/searches/{search}/recipe", responses=_errors(*_OF_A_SEARCH))
    def recipe(search: _SearchId) -> RecipeAnswer:
        """recipe.yaml and its folder."""
        return handlers.recipe(search)

    @app.get("/v1/searches/{search}/logs/{trial}", responses=_errors(*_OF_A_SEARCH))
    def logs(search: _SearchId, trial: _Trial, rank: Annotated[int | None, Query(ge=0, le=10**6)] = None) -> LogsAnswer:
        """Output of a trial's ranks: the first real error, or the end of one rank's log."""
        return handlers.logs(search, trial, rank)


def _add_stream(app: FastAPI, handlers: RequestHandlers, is_stopping: Callable[[], bool]) -> None:
    @app.get(_EVENTS_PATH, response_class=StreamingResponse, responses=_errors(*_OF_A_SEARCH))
    def follow(search: _SearchId, last_event_id: _LastEventId = None) -> Response:
        """Events of a search as they happen (server-sent), after the given number, until the search ends."""
        lines = event_stream.stream(handlers.journal_path(search), int(last_event_id or 0), is_stopping)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(InputError)
    def refused(request: Request, error: InputError) -> JSONResponse:
        status = {"unknown_id": 404, "ambiguous_id": 409}.get(error.problems[0].code, 400)
        return error_response(status, error.problems[0], None, *error.problems[1:])

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first, *others = map(_problem_of, error.errors())
        return error_response(400, first, None, *others)

    @app.exception_handler(LeaseHeld)
    def held(request: Request, error: LeaseHeld) -> JSONResponse:
        return error_response(409, Problem("held", str(error), fix=HELD_FIX), None)

    @app.exception_handler(NotReady)
    def not_ready(request: Request, error: NotReady) -> JSONResponse:
        return error_response(409, Problem("not_ready", str(error), fix="ask again later"), None)

    @app.exception_handler(ExternalError)
    def outside(request: Request, error: ExternalError) -> JSONResponse:
        return error_response(503, Problem("refused", str(error), fix=error.fix), None)

    @app.exception_handler(OSError)
    def disk(request: Request, error: OSError) -> JSONResponse:
        return error_response(503, Problem("refused", str(error)), None)

    @app.exception_handler(HTTPException)
    def unknown(request: Request, error: HTTPException) -> Response:
        if request.method in ("GET", "HEAD") and wants_page(request.headers):
            title = {404: "Not found", 405: "Not possible here"}.get(error.status_code, "Not understood")
            return refusal_page(error.status_code, title, "this service has no such page", leads_home=True)
        code = {404: "unknown_path", 405: "method"}.get(error.status_code, "usage")
        problem = Problem(code, str(error.detail), fix="see GET /openapi.json")
        return error_response(error.status_code, problem, error.headers)

    @app.exception_handler(Exception)
    def bug(request: Request, error: Exception) -> Response:
        _log.error("".join(traceback.format_exception(error)).rstrip())
        if is_page(request.url.path) and request.method == "GET":
            return refusal_page(500, "Internal error", "the service's log has the traceback", leads_home=True)
        problem = Problem("bug", "internal error of the service", fix="report it with the traceback in its log")
        return error_response(500, problem, None)


def _problem_of(found: Any) -> Problem:
    """One of pydantic's errors as a problem; the key is body.yaml, query.rank or path.search."""
    key = ".".join(str(part) for part in found["loc"])
    given = found.get("input")
    value = given[:_LONGEST_SHOWN].encode("utf-8", "backslashreplace").decode() if isinstance(given, str) else None
    return Problem("usage", found["msg"], key=key, value=value, fix="see GET /openapi.json")


_LONGEST_SHOWN = 200


def _openapi(app: FastAPI, has_token: bool) -> dict[str, Any]:
    """FastAPI's OpenAPI document, without its own validation errors, with the schema of the event stream and with the
    token that a service on a port asks for."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, routes=app.routes, description=_ABOUT)
        described["components"]["securitySchemes"] = _SCHEMES
        described["security"] = [{"token": []}] if has_token else []
        for path in described["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        streamed = described["paths"][_EVENTS_PATH]["get"]["responses"]["200"]
        streamed["content"] = {"text/event-stream": {"itemSchema": _EVENT}}
        for name in ("HTTPValidationError", "ValidationError"):
            described["components"]["schemas"].pop(name, None)
        app.openapi_schema = described
    return app.openapi_schema
