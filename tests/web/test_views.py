"""Every view shows what is really in the store, can be linked to, and is accessible in light and dark."""

from __future__ import annotations

import pytest
from tests.web.conftest import axe_findings, shot

VIEWS = {
    "runs": ("#/runs", "run-failed"),
    "runs-filtered": ("#/runs?agent=planner&status=ok", "run-000"),
    "search": ("#/runs?q=invoice", "best first"),
    "run": ("#/runs/run-003", "Summarise what customers said"),
    "run-failed": ("#/runs/run-failed?span=rf-upload&tab=details", "ConnectionRefusedError"),
    "run-cost": ("#/runs/run-003?tab=cost", "By token type"),
    "run-replay": ("#/runs/run-003?at=100000", "Summarise what customers said"),
    "compare": ("#/compare?runs=run-003,run-015", "in common"),
    "compare-agents": ("#/compare?agents=coder,planner", "tokens a run"),
    "threads": ("#/threads", "support/alice-bolder"),
    "thread": ("#/threads/support%2Falice", "Pending approval"),
    "thread-state": ("#/threads/support%2Falice?tab=state", "ask for an account"),
    "thread-diff": ("#/threads/work%2Frefunds?tab=diff", "shop/limits.py"),
    "thread-files": ("#/threads/work%2Frefunds?tab=files&path=shop%2Frefund.py&file=1", "min(amount, LIMIT)"),
    "thread-long": ("#/threads/research%2Flong-horizon", "90 checkpoints"),
    "workspace": ("#/workspace", "before the limit"),
    "memory": ("#/memory/policy%2Fsummary", "the handbook"),
    "memory-search": ("#/memory?q=gift+cards", "policy/refunds"),
    "memory-versions": ("#/memory/alice%2Ftone?tab=versions", "and no emojis."),
    "memory-edit": ("#/memory/alice%2Ftone?tab=edit", "Load into every context"),
    "cost": ("#/cost?days=all", "By model"),
    "schedules": ("#/schedules", "Summarise the night"),
    "store": ("#/store", "Integrity"),
    "nowhere": ("#/attic", "Page not found"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_its_data_and_is_accessible(name, page, sample_url):
    fragment, text = VIEWS[name]
    page.goto(f"{sample_url}/ui/{fragment}")
    page.get_by_text(text).first.wait_for()
    page.locator("[role=status]:has-text('…')").first.wait_for(state="detached")
    shot(page, f"{name}-light")
    assert axe_findings(page) == []
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    shot(page, f"{name}-dark")
    assert axe_findings(page, rules=("color-contrast",)) == []
