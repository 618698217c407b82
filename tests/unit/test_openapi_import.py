"""An OpenAPI description as tools for review: what loads, what is left out, and what a hostile file can do."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.contracts.application import Application, HttpConnector, load_application
from libs.contracts.http_call import fill_path, fill_query, split_url
from services.tools.domain import Catalogue
from turnkeeper import cli
from turnkeeper.openapi import Imported, OpenapiError, import_tools, read_document

SHOP = """
openapi: 3.0.3
info: {title: Pet Shop, version: 1.0.0}
servers: [{url: "https://{region}.shop.example/v1/", variables: {region: {default: eu}}}]
security: [{key: []}]
paths:
  /pets/{petId}/toys:
    parameters: [{$ref: '#/components/parameters/PetId'}]
    get:
      operationId: listToys
      summary: |-
        List
        all toys
      parameters:
        - {name: limit, in: query, schema: {type: integer, minimum: 0, exclusiveMinimum: true}}
        - {name: ids, in: query, explode: false, schema: {type: array, items: {type: string}}}
        - {name: tags, in: query, required: true, schema: {type: array, items: {type: string}}}
        - {name: X-Lang, in: header, schema: {type: string}}
        - {name: Accept, in: header, schema: {type: string}}
        - {name: filter, in: query, style: deepObject, schema: {type: object}}
      responses: {200: {content: {application/json: {}}}}
    post:
      operationId: addToy
      parameters: [{name: idempotency-key, in: header, schema: {type: string}}]
      requestBody:
        required: true
        content: {application/merge-patch+json: {schema: {$ref: '#/components/schemas/Toy'}}}
      responses: {201: {content: {text/plain: {}}}}
  /files:
    put: {operationId: upload, requestBody: {content: {multipart/form-data: {}}}}
    delete: {operationId: set_timer, security: [], responses: {204: {}}}
components:
  parameters:
    PetId: {name: petId, in: path, required: true, schema: {type: string, maxLength: 40}}
  schemas:
    Toy:
      type: object
      required: [id, name]
      properties:
        id: {type: string, readOnly: true}
        name: {type: string, nullable: true, enum: [ball, rope], description: "What it\\n# is \\u202e called"}
  securitySchemes: {key: {type: apiKey, in: header, name: X-Api-Key}}
"""


def write(folder: Path, text: str, name: str = "api.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def imported(folder: Path, text: str = SHOP, **options: Any) -> Imported:
    return import_tools(read_document(write(folder, text)), **options)


def loaded(folder: Path, made: Imported) -> Application:
    """The tools in an application file, as a person would put them there."""
    head = "sources: {app: {verify: {scheme: user-token}}}\nplanner: {scripted: {rules: rules.yaml}}\n"
    return load_application(write(folder, head + made.text, "turnkeeper.yaml"))


def http_of(application: Application, tool: str) -> HttpConnector:
    http = application.tools[tool].connector.http
    assert http is not None
    return http


def minimal(**operation: Any) -> dict[str, Any]:
    """A description of one operation, OpenAPI 3.1."""
    responses = {"responses": {"200": {"description": "ok", "content": {"application/json": {}}}}}
    return {
        "openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "servers": [{"url": "https://a.example"}],
        "paths": {"/x": {"post": {"operationId": "x", **responses, **operation}}},
    }  # fmt: skip


def body(schema: Any, **components: Any) -> dict[str, Any]:
    content = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    return {**minimal(**content), "components": {"schemas": components}}


def test_what_is_written_loads_and_has_the_effect_of_its_method(tmp_path: Path) -> None:
    application = loaded(tmp_path, imported(tmp_path))
    tools = application.tools
    assert (tools["listToys"].effect, tools["listToys"].gate) == ("read", "never")
    assert (tools["addToy"].effect, tools["addToy"].gate, tools["addToy"].keyed) == ("write", "unless-user", None)
    Catalogue.of(application)  # each schema compiles


def test_a_built_in_name_is_not_taken(tmp_path: Path) -> None:
    made = imported(tmp_path)
    assert made.tools == ("listToys", "addToy", "set_timer_2")
    assert loaded(tmp_path, made).tools["set_timer_2"].connector.http is not None


def test_the_request_is_the_one_that_the_description_describes(tmp_path: Path) -> None:
    http = http_of(loaded(tmp_path, imported(tmp_path)), "listToys")
    args = {"petId": "a/b", "ids": ["1", "2"], "tags": ["x", "y"]}
    base, segments = split_url(http.url)
    assert (base, fill_path(segments, {"args": args})) == ("https://eu.shop.example", "/v1/pets/a%2Fb/toys")
    assert fill_query(http.query or {}, {"args": args}) == "ids=1%2C2&tags=x&tags=y"
    assert fill_query(http.query or {}, {"args": {"petId": "p", "tags": [], "limit": 3}}) == "limit=3"
    assert http.headers == {"X-Api-Key": "env:PET_SHOP_X_API_KEY", "X-Lang": '{{ args["X-Lang"] | default(none) }}'}


def test_a_body_its_type_and_the_key_header_are_kept(tmp_path: Path) -> None:
    http = http_of(loaded(tmp_path, imported(tmp_path)), "addToy")
    assert (http.body, http.idempotency_header, http.reads) == ("{{ args.body }}", "idempotency-key", "text")
    assert http.headers["Content-Type"] == "application/merge-patch+json"


def test_the_arguments_are_json_schema_of_today(tmp_path: Path) -> None:
    application = loaded(tmp_path, imported(tmp_path))
    assert application.tools["listToys"].args["properties"]["limit"] == {"type": "integer", "exclusiveMinimum": 0}
    toy = application.tools["addToy"].args["properties"]["body"]
    assert toy["required"] == ["name"], "what only the destination sets is no argument"
    assert list(toy["properties"]) == ["name"]
    assert toy["properties"]["name"]["type"] == ["string", "null"]
    assert toy["properties"]["name"]["enum"] == ["ball", "rope", None]
    catalogue = Catalogue.of(application)
    assert catalogue.faults("addToy", {"petId": "p", "body": {"name": None}}) == []
    assert catalogue.faults("addToy", {"petId": "p", "body": {"name": "mouse"}}) != []
    assert catalogue.faults("addToy", {"petId": "p", "body": {"name": "ball"}, "more": 1}) != []


def test_what_cannot_be_sent_is_left_out_and_named(tmp_path: Path) -> None:
    made = imported(tmp_path)
    assert made.left_out == ("PUT /files: its content is multipart/form-data, and only JSON can be sent",)
    assert "# without its parameter filter: the parameter filter is written in a style" in made.text


def test_text_of_others_is_one_visible_line(tmp_path: Path) -> None:
    made = imported(tmp_path)
    assert "# GET /pets/{petId}/toys: List all toys" in made.text
    assert made.text.isascii()
    assert loaded(tmp_path, made).tools["addToy"].args["properties"]["body"]["properties"]["name"]["description"] == (
        "What it # is called"
    )


def test_a_comment_cannot_end_and_become_a_tool(tmp_path: Path) -> None:
    hostile = minimal(summary="x\r\n  evil:\n    effect: none\u2028  more: 1\x85  again: 2", operationId="a: b\n#c")
    made = imported(tmp_path, json.dumps(hostile))
    assert made.tools == ("a_b_c",)
    assert set(yaml.safe_load(made.text)["tools"]) == {"a_b_c"}


def test_json_and_yaml_are_read_alike(tmp_path: Path) -> None:
    assert imported(tmp_path, json.dumps(json.loads(json.dumps(yaml.safe_load(SHOP))))).text == imported(tmp_path).text


def test_3_1_counts_what_stands_beside_a_reference(tmp_path: Path) -> None:
    made = imported(
        tmp_path, json.dumps(body({"$ref": "#/components/schemas/A", "minLength": 2}, A={"type": "string"}))
    )
    schema = loaded(tmp_path, made).tools["x"].args["properties"]["body"]
    assert schema == {"allOf": [{"type": "string"}, {"minLength": 2}]}


def test_only_chooses_and_must_be_possible(tmp_path: Path) -> None:
    assert imported(tmp_path, only=["addToy"]).tools == ("addToy",)
    with pytest.raises(OpenapiError, match="there is no operation nothing"):
        imported(tmp_path, only=["addToy", "nothing"])
    with pytest.raises(OpenapiError, match="multipart"):
        imported(tmp_path, only=["addToy", "upload"])


def test_a_server_may_be_given_and_must_be_one(tmp_path: Path) -> None:
    relative = json.dumps({**minimal(), "servers": [{"url": "/v1"}]})
    with pytest.raises(OpenapiError, match="--server"):
        imported(tmp_path, relative)
    made = imported(tmp_path, relative, server="https://b.example/v2/")
    assert http_of(loaded(tmp_path, made), "x").url == "https://b.example/v2/x"
    with pytest.raises(OpenapiError, match="--server: "):
        imported(tmp_path, relative, server="https://{{ host }}/")


def doubling(levels: int) -> dict[str, Any]:
    """A few lines that stand for 2**levels schemas."""
    parts = {
        f"S{n}": {"type": "object", "properties": {side: {"$ref": f"#/components/schemas/S{n + 1}"} for side in "ab"}}
        for n in range(levels)
    }
    return body({"$ref": "#/components/schemas/S0"}, **parts, **{f"S{levels}": {"type": "string"}})


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return body(schema)


REF = {"$ref": "#/components/schemas/A"}
HOSTILE: dict[str, tuple[Any, str]] = {
    "a schema in itself": (body(REF, A={"type": "object", "properties": {"a": REF}}), "contain themselves .A in A"),
    "a reference to itself": (body(REF, A=REF), "refers to itself"),
    "two references in a ring": (body(REF, A={"$ref": "#/components/schemas/B"}, B=REF), "refers to itself"),
    "doubling": (doubling(25), "more than 3000 schemas"),
    "nested": (nested(65), "too deep"),
    "another file": (body({"$ref": "file:///etc/passwd"}), "another file"),
    "another host": (body({"$ref": "https://evil.example/x.json"}), "another file"),
    "nowhere": (body({"$ref": "#/components/schemas/N"}), "which is not there"),
    "dynamic": (body({"$dynamicRef": "#x"}), "dynamicRef"),
    "many values": (body({"enum": list(range(2000))}), "more than 1000 values"),
    "a bad pattern": (body({"type": "string", "pattern": "("}), "args"),
    "a wrong type": (body({"type": 7}), "args"),
    "a host by variable": (
        {**minimal(), "servers": [{"url": "https://a.example@{h}/", "variables": {"h": {"default": "evil.example"}}}]},
        "password",
    ),
    "a template in the server": ({**minimal(), "servers": [{"url": "https://{{ args.h }}/"}]}, "literal"),
    "a template in the path": (
        {**minimal(), "paths": {"/{{ args.h }}": {"get": {"responses": {}}}}}, "its path names|XX|template"),
    "dots in the path": ({**minimal(), "paths": {"/../admin": {"get": {"responses": {}}}}}, "dots"),
    "a header of ours": (
        minimal(parameters=[{"name": "Turnkeeper-Actor", "in": "header", "required": True, "schema": {}}]), "runtime"),
    "a cookie": (minimal(parameters=[{"name": "c", "in": "cookie", "required": True, "schema": {}}]), "cookie"),
    "a name with braces": (
        minimal(parameters=[{"name": "a}} x {{", "in": "query", "required": True, "schema": {}}]), "characters"),
    "a secret in the query": (
        {**minimal(security=[{"k": []}]),
         "components": {"securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "key"}}}},
        "secret in query"),
    "parameters that are none": (minimal(parameters={"a": 1}), "no list"),
    "a path that is none": ({**minimal(), "paths": {"/x": [1]}}, "no object"),
    "no operation": ({**minimal(), "paths": {}}, "no operation"),
    "swagger": ({"swagger": "2.0"}, "Swagger 2.0"),
    "a later version": ({**minimal(), "openapi": "4.0.0"}, "its version is 4.0.0"),
    "no version": ({"paths": {}}, "has no `openapi`"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_a_clear_error_at_once(tmp_path: Path, case: str) -> None:
    description, why = HOSTILE[case]
    begun = time.monotonic()
    with pytest.raises(OpenapiError, match=why) as caught:
        imported(tmp_path, json.dumps(description))
    assert time.monotonic() - begun < 10
    assert "\n" not in str(caught.value)


TEXTS: dict[str, tuple[str, str]] = {
    "no object": ("[1]", "no object"),
    "no YAML": ("a: b: c", "not YAML at line 1"),
    "no JSON": ("{", "not JSON"),
    "a key twice": ('{"openapi": "3.1.0", "openapi": "3.1.0"}', "twice"),
    "deep JSON": ('{"a":' * 5000 + "1" + "}" * 5000, "too deep|not JSON"),
    "deep YAML": ("a: " + "[" * 5000, "not YAML"),
    "a Python object": ("a: !!python/object/apply:os.system [true]", "not YAML"),
    "YAML in itself": ("openapi: 3.1.0\npaths: {/x: &a {post: {requestBody: {content: {application/json: {schema: "
                       "&s {items: *s}}}}}}}\nservers: [{url: 'https://a.example'}]", "too deep"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_a_file_that_cannot_be_read_is_told_in_a_line(tmp_path: Path, case: str) -> None:
    text, why = TEXTS[case]
    with pytest.raises(OpenapiError, match=why) as caught:
        imported(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_aliases_that_stand_for_billions_end_at_the_limit(tmp_path: Path) -> None:
    lines = ["a0: &a0 {type: string}"]
    lines += [f"a{n}: &a{n} {{properties: {{x: *a{n - 1}, y: *a{n - 1}}}}}" for n in range(1, 38)]
    text = (
        yaml.safe_dump({k: v for k, v in minimal().items() if k != "paths"})
        + "\n".join(lines)
        + ("\npaths: {/x: {post: {requestBody: {content: {application/json: {schema: *a37}}}}}}\n")
    )
    with pytest.raises(OpenapiError, match="more than 3000 schemas"):
        imported(tmp_path, text)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OpenapiError, match="larger than 8 MB"):
        imported(tmp_path, "a: " + "x" * 9_000_000)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenapiError, match="No such file"):
        read_document(tmp_path / "nothing.yaml")


def test_the_command_writes_yaml_to_stdout_and_the_rest_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["tools", "import", "openapi", str(write(tmp_path, SHOP))]) == 0
    shown = capsys.readouterr()
    assert set(yaml.safe_load(shown.out)["tools"]) == {"listToys", "addToy", "set_timer_2"}
    assert shown.err.splitlines() == [
        "left out PUT /files: its content is multipart/form-data, and only JSON can be sent",
        "3 tools, 1 left out: review each, then put it into turnkeeper.yaml",
    ]
    assert cli.run(["tools", "import", "openapi", str(tmp_path / "none.yaml")]) == 1
    assert "No such file" in capsys.readouterr().err
