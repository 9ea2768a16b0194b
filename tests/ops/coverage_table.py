# SPDX-License-Identifier: Apache-2.0
"""The page docs/op-coverage.md, made from the outcomes of conformance.py."""

import conformance


def status(outcomes):
    """native, host call, or failing, for one op over all types."""
    if any(o["wrong"] or o["errors"] for o in outcomes.values()):
        return "failing"
    if any(o["host"] for o in outcomes.values()):
        return "host call"
    return "native" if any(o["right"] for o in outcomes.values()) else "no samples"


def totals(results):
    """One line: how many ops are native, hosted and failing."""
    found = [status(o) for o in results.values()]
    counted = len(found) - found.count("no samples")
    if not counted:
        return "no samples"
    share = {s: 100 * found.count(s) / counted for s in ("native", "host call", "failing")}
    return f"{counted} ops: " + ", ".join(f"{found.count(s)} {s} ({share[s]:.1f} %)" for s in share)


def page(results, full):
    """The whole document."""
    return "\n".join(["# Op coverage", "", totals(results), "", *rows(results)]) + "\n"


def rows(results):
    yield "| Op | Runs | Types | Samples | Host calls |"
    yield "|---|---|---|---|---|"
    for name, outcomes in sorted(results.items()):
        hosts = sorted({h for o in outcomes.values() for h in o["host"]})
        right = sum(o["right"] for o in outcomes.values())
        types = ", ".join(t for t, o in outcomes.items() if o["samples"])
        yield (
            f"| `{name}` | {status(outcomes)} | {types} | {right} | "
            + ", ".join(f"`{h.removeprefix('aten::')}`" for h in hosts)
            + " |"
        )
    for name, why in conformance.NOT_STATIC.items():
        yield f"| `{name}` | cannot be static | | | {why} |"
