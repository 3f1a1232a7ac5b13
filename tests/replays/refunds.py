"""An agent of the tests, as users have them: a model behind HTTP, a prompt, tools, and a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.replays.provider import plan
from treering.agent import create_agent, tool

PROMPT = "You answer customers. Be kind, and never promise what you cannot keep."
QUESTION = plan(
    ("I look.", [("search_orders", {"customer": "alice"})]),
    ("I pay.", [("refund", {"order": "4711", "amount": 19.5})]),
    ("I note.", [("note", {"text": "refunded 4711"})]),
    "Your refund of 19.50 is on its way.",
)
PAID: list[str] = []


class Refunds:
    """The agent, with everything that a change could break."""

    def __init__(self, url: str = "http://127.0.0.1:9") -> None:
        self.url = url
        self.prompt = PROMPT
        self.model = "gpt-5"
        self.amount: type = float
        self.searches = 0
        self.noted = "noted: {text}"

    def ask(self, messages: Any, tools: Any) -> dict[str, Any]:
        said = [{"role": "system", "content": self.prompt}]
        said += [{name: each[name] for name in each if name != "usage"} for each in messages]
        body = {"model": self.model, "messages": said, "tools": [each.as_openai() for each in tools]}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body).raise_for_status().json()
        return {**answer["choices"][0]["message"], "usage": answer["usage"]}

    def __call__(self, folder: str, question: str = QUESTION) -> str:
        def search_orders(customer: str) -> list[dict[str, Any]]:
            """Return the orders of a customer."""
            self.searches += 1
            return [{"order": "4711", "amount": 19.5, "customer": customer}]

        def pay(order: str, amount: Any) -> str:
            """Pay money back."""
            PAID.append(order)
            return f"paid {amount:.2f} for {order}"

        pay.__annotations__ = {"order": str, "amount": self.amount, "return": str}

        def note(text: str) -> str:
            """Write a note into the report."""
            with (Path(folder) / "report.md").open("a") as report:
                report.write(text + "\n")
            return self.noted.format(text=text)

        tools = [search_orders, tool(replay="once", name="refund")(pay), note]
        agent = create_agent(model=self.ask, tools=tools, name="refunds")
        return agent.generate(prompt=question).text
