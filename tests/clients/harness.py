"""Runs the tests of one client: every function of the caller whose name begins with test_."""

import os
import sys
import traceback

URL = os.environ["SINEW_URL"]
MODEL = os.environ["SINEW_MODEL"]
# A model that sees pictures, and its node.
SEES = os.environ["SINEW_SEES"]
SEES_URL = os.environ["SINEW_SEES_URL"]
PICTURE = os.path.join(os.path.dirname(__file__), "../../fixtures/vision/image-64x48.png")
BLIND = "reads text only"
QUESTION = "What is Sinew?"
ANSWER = "one AI computer"
# One choice for each value: a model that has never seen a tool can fill this in.
WEATHER = {
    "type": "object",
    "properties": {"at": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["at"],
    "additionalProperties": False,
}


def fails(kind, act):
    """The error of that kind which act ends with."""
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def main(tests):
    failed = 0
    for name, test in list(tests.items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            print(f"    ok     {name}")
        except Exception:
            failed += 1
            print(f"    FAILED {name}")
            traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)
