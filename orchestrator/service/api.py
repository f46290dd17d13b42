"""REST interface of the service: each path is a call of the handlers, each error is an ErrorAnswer."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from dashboards.access.auth import AuthPolicy
from orchestrator.config.answer import ErrorAnswer
from orchestrator.search.lease import HELD_FIX, LeaseHeld
from orchestrator.service import event_stream
from orchestrator.service.handlers import VERSION, NotReady, RequestHandlers, SearchId
from orchestrator.service.middleware import AuthMiddleware, error_response
from orchestrator.service.pages import is_page, page_routes, refusal_page, wants_page
from search_spaces.errors import ExternalError, InputError, Problem
from trials.ledger.events import EventKind

_log = logging.getLogger(__name__)

_LastEventId = Annotated[
    str | None, Header(pattern="^[0-9]{1,15}$", description="Number of the last event that was read.")
]

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words}
    for status, words in {
        400: "Bad input, with the rule and the fix.",
        401: "The token is missing or wrong (on a port).",
        403: "The Host is wrong, or the Origin is another web page (on a port).",
        404: "No such search, trial or path.",
        409: "Conflict: held by another driver, an ambiguous id, or not ready yet.",
        413: "The body is larger than 1 MiB.",
        415: "The body is not JSON.",
        500: "Internal error; the service's log has the traceback.",
        503: "Slurm, the ledger or a disk refuses or is unreachable.",
    }.items()
}
"""Error responses of all calls."""

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
    app = FastAPI(title="Parlay", version=VERSION, docs_url=None, redoc_url=None, responses=_ERRORS)
    _add_calls(app, handlers)
    _add_stream(app, handlers, is_stopping)
    _add_refusals(app)
    app.openapi = lambda: _openapi(app, has_token=policy.token is not None)  # type: ignore[method-assign]
    if policy.sessions is not None:
        app.router.routes.extend(page_routes(handlers, policy.sessions, is_read_only))
    return AuthMiddleware(app, policy)


def _add_calls(app: FastAPI, handlers: RequestHandlers) -> None:
    app.get("/v1/health")(handlers.health)
    app.get("/v1/searches")(handlers.searches)
    app.post("/v1/searches", status_code=201)(handlers.submit)
    app.get("/v1/searches/{search}")(handlers.status)
    app.post("/v1/searches/{search}/cancel", status_code=202)(handlers.cancel)
    app.post("/v1/searches/{search}/resume", status_code=202)(handlers.resume)
    app.get("/v1/searches/{search}/trials")(handlers.trials)
    app.get("/v1/searches/{search}/best")(handlers.best)
    app.get("/v1/searches/{search}/recipe")(handlers.recipe)
    app.get("/v1/searches/{search}/logs/{trial}")(handlers.logs)


def _add_stream(app: FastAPI, handlers: RequestHandlers, is_stopping: Callable[[], bool]) -> None:
    @app.get(_EVENTS_PATH, response_class=StreamingResponse)
    def follow(search: SearchId, last_event_id: _LastEventId = None) -> Response:
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

    def refusing(status: int, code: str, fix: str | None) -> Callable[[Request, Exception], JSONResponse]:
        def answer(request: Request, error: Exception) -> JSONResponse:
            return error_response(status, Problem(code, str(error), fix=getattr(error, "fix", None) or fix), None)

        return answer

    for kind, status, code, fix in (
        (LeaseHeld, 409, "held", HELD_FIX),
        (NotReady, 409, "not_ready", "ask again later"),
        (ExternalError, 503, "refused", None),
        (OSError, 503, "refused", None),
    ):
        app.exception_handler(kind)(refusing(status, code, fix))

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
