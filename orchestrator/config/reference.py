"""Generator of docs/search_file.md from the schemas' descriptions: `python -m orchestrator.config.reference > FILE`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.loader import json_schema
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.schema import durations, presets

_OPENING = """\
# The search file

One YAML file describes a search. `parlay init` writes a commented example, `parlay plan FILE` lists the layouts it
allows and says why the others are left out, `parlay run FILE` starts it, and `parlay schema` prints the JSON schema
for editors. This page is generated from the schemas: `python -m orchestrator.config.reference > docs/search_file.md`.

Unknown keys, duplicate keys, tags, anchors, tabs and files over 1 MiB are rejected, with their line. Only `true` and
`false` are booleans; `yes`, `08` and `1_000` are text. Any key can be set on the command line:
`--set search.max_trials=20`, `--set space.tensor_parallel=[1,2]`. Paths of tables and cluster files are relative to the
search file's folder, `work_dir` to the working directory. Secrets belong in the environment; anything that looks like
one is rejected.

The smallest search:

<!-- tested -->
```console
$ cat > small.yaml <<'END'
name: small
model: gpt2-tiny
cluster: this-machine
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
END
$ parlay plan small.yaml
2 layouts can be tried on 4 ranks, by expected speed and fit probability:
...
$ parlay schema > search.schema.json
```
"""


def reference() -> str:
    """The page as Markdown."""
    schema = json_schema()
    definitions = schema["$defs"]
    sections = [*_sections(schema, definitions, "")]
    parts = [_OPENING, _contents(sections), "## Top level\n", _table(schema, definitions), *sections]
    return _with_links("\n".join([*parts, *_closing()]))


def _contents(sections: list[str]) -> str:
    titles = [part.strip("#` \n") for part in sections if part.startswith("## ")]
    return "Sections: " + ", ".join(f"[{title}](#{title.replace('.', '')})" for title in titles) + ".\n"


def _with_links(text: str) -> str:
    """Turn paths of pages in descriptions, which editors show as text, into links."""
    return re.sub(r"\bdocs/([a-z_]+\.md)\b(?!`)", r"[\1](\1)", text)


def _sections(owner: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Sections below `owner`, each followed by its subsections; `prefix` is their path."""
    for key, field in owner["properties"].items():
        section = _section(field, definitions)
        if section is not None:
            fields = _fields_of(section)
            yield from (
                f"## `{prefix}{key}`\n",
                section["description"] + "\n",
                _table(fields, definitions, f"{prefix}{key}."),
            )
            yield from _sections(fields, definitions, f"{prefix}{key}.")


def _closing() -> list[str]:
    return [
        "## Value formats\n",
        f"A duration is {durations.GRAMMAR}; a bare number is minutes.\n",
        "An axis is one value, a list, `{min, max, step}` or `{min, max, factor}`.\n",
        "Accelerators: " + ", ".join(f"`{name}`" for name in ACCELERATORS) + "; names from data sheets work as well.\n",
        *(f"Ready-made {kind}: {_presets(kind)}.\n" for kind in _READY_MADE),
        "A command takes the name of a ready-made search in place of a file, unless such a file exists: `parlay plan"
        " quickstart`, `parlay plan twins/frontier`.\n",
    ]


_READY_MADE = (presets.MODELS, presets.CLUSTERS, presets.SEARCHES, presets.TWINS)


def _presets(kind: str) -> str:
    return ", ".join(f"`{name}`" for name in presets.preset_names(kind))


def _section(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Section of a key, or of the items of its list; None for plain values."""
    for form in (field, *field.get("anyOf", []), field.get("items", {})):
        found = definitions.get(form.get("$ref", "").split("/")[-1])
        if found is not None and "enum" not in found:
            return found
    return None


def _fields_of(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variant of a section that has keys; some sections may be given as a name."""
    return next(form for form in (section, *section.get("anyOf", [])) if "properties" in form)


def _table(section: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = "") -> str:
    lines = ["| key | value | description |", "|---|---|---|"]
    for key, field in section["properties"].items():
        holds = _section(field, definitions)
        about = field.get("description") or (holds or {})["description"].splitlines()[0]
        given = "**required**, " if key in section.get("required", []) else ""
        anchor = f"{prefix}{key}".replace(".", "")
        several = "list, " if "items" in field else ""
        value = f"{several}see [{key}](#{anchor})" if holds else _value(field, definitions) + _default(field)
        lines.append(f"| `{key}` | {given}{value} | {about} |")
    return "\n".join(lines) + "\n"


def _value(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in field:
        field = definitions[field["$ref"].split("/")[-1]]
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_forms(field["anyOf"], definitions)))
    if words := field.get("enum") or [field[key] for key in ("const",) if key in field]:
        return ", ".join(f"`{word}`" for word in words)
    if field.get("type") == "object" and "title" in field:
        return str(field["title"])
    return "duration" if field.get("format") == durations.JSON_FORMAT else _TYPES[field["type"]] + _bounds(field)


def _forms(forms: list[Mapping[str, Any]], definitions: Mapping[str, Any]) -> Iterator[str]:
    """Forms of a value. An axis is named as such, as is a list of limited length; null only marks an optional key."""
    if any("maxItems" in form for form in forms):
        yield "one or a list of " + _value(forms[0], definitions)
        return
    if any(form.get("type") == "array" for form in forms):
        yield "axis: " + _value(forms[0], definitions)
        return
    for form in forms:
        if form.get("type") != "null":
            yield _value(form, definitions)


_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "array": "list of texts",
    "object": "texts by name",
}


def _bounds(field: Mapping[str, Any]) -> str:
    words = [
        f"{word} {field[key]}"
        for key, word in (("minimum", "from"), ("exclusiveMinimum", "over"), ("maximum", "to"))
        if key in field
    ]
    return " " + " ".join(words) if words else ""


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if default is None:
        return ""
    return f"; default `{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    print(reference(), end="")
