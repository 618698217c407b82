"""The table of the door's checks and the door agree: each refusal of its code and of its script has a code."""

import ast
import re
from pathlib import Path
from typing import get_args

from libs.contracts.door import CHECKS, DoorCode, check_of, code_of

CLAIM = Path("services/tools/lua/claim_operation.lua")
DOMAIN = Path("services/tools/domain.py")


def test_each_check_has_one_code_and_each_code_one_check() -> None:
    codes = [check.code for check in CHECKS]
    assert len(codes) == len(set(codes))
    assert {*codes, "refused"} == set(get_args(DoorCode))


def test_each_refusal_of_the_claiming_script_has_a_code_of_its_own() -> None:
    said = re.findall(r"return \{'refused', '([^']+)'", CLAIM.read_text())
    assert said
    assert [text for text in said if code_of("refused", text) == "refused"] == []


def test_each_rejection_names_a_check_of_its_stage() -> None:
    rejections = [
        node
        for node in ast.walk(ast.parse(DOMAIN.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Rejection"
    ]
    codes = [node.args[1].value for node in rejections if isinstance(node.args[1], ast.Constant)]
    assert len(codes) == len(rejections)
    assert all(check_of(str(code)).code == code for code in codes)


def test_the_stages_stand_in_the_doors_order() -> None:
    order = list(dict.fromkeys(check.stage for check in CHECKS))
    assert order == [
        "seals", "action", "tool", "arguments", "permission", "identity", "conditions", "key", "binding", "grant",
    ]  # fmt: skip
