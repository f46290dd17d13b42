"""Page about the service's REST interface, from its OpenAPI document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.report.html import Page, html_page


@dataclass(frozen=True)
class Named:
    """A parameter, a field of a body or a status, with its description."""

    name: str
    text: str


@dataclass(frozen=True)
class Call:
    """One call: `request` are the parameters and fields of its body, `responses` its statuses."""

    method: str
    path: str
    text: str
    request: tuple[Named, ...]
    responses: tuple[Named, ...]


def interface_page(openapi: Mapping[str, Any]) -> Page:
    """Every call with its parameters and statuses, and how a program signs in."""
    return html_page(
        "interface.html.jinja",
        "Parlay: REST interface",
        styles=("page.css", "service.css"),
        about=openapi["info"]["description"],
        schemes=[scheme["description"] for scheme in openapi["components"]["securitySchemes"].values()],
        calls=list(calls_of(openapi)),
    )


def calls_of(openapi: Mapping[str, Any]) -> Iterator[Call]:
    """Calls in the order of the document."""
    for path, methods in openapi["paths"].items():
        for method, call in methods.items():
            responses = tuple(Named(status, _answer_text(found)) for status, found in sorted(call["responses"].items()))
            text = " ".join(call["description"].split())
            yield Call(method.upper(), path, text, tuple(_request(call, openapi)), responses)


def _request(call: Mapping[str, Any], openapi: Mapping[str, Any]) -> Iterator[Named]:
    for given in call.get("parameters", ()):
        needed = "" if given["required"] else ", optional"
        yield Named(given["name"], _joined(f"in the {given['in']}{needed}", given.get("description")))
    if "requestBody" in call:
        schema = call["requestBody"]["content"]["application/json"]["schema"]
        body = _resolved(schema, openapi)
        for name, field in body["properties"].items():
            needed = "in the body" if name in body.get("required", ()) else "in the body, optional"
            yield Named(name, _joined(needed, field.get("description")))


def _resolved(schema: Mapping[str, Any], openapi: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that a schema names; of a choice, the first that is not null."""
    found = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
    reference = found.get("$ref")
    return found if reference is None else openapi["components"]["schemas"][reference.rpartition("/")[2]]


def _answer_text(response: Mapping[str, Any]) -> str:
    """Description of a response; of a successful one, the name of its schema."""
    if response["description"] != "Successful Response":
        return response["description"]
    for kind, content in response.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        return name or kind
    return ""


def _joined(place: str, text: str | None) -> str:
    return f"{text} ({place})" if text else f"({place})"
