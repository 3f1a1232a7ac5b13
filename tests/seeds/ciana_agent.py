"""A chat agent as 004 describes it: LangGraph behind, chats in front, everything in a treering store.

python -m tests.seeds.ciana_agent STORE

Reads ``channel chat_id text`` lines and prints one JSON line for each: the thread, and what the agent says.
The model is scripted: it repeats all that the person said in this session. ``/new`` begins the next
session; ``/hang`` is a message whose answer takes for ever, for whoever wants to kill the agent in the
middle of a turn.
"""

from __future__ import annotations

import json
import sys
import time

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import treering
from treering.adapters.langgraph import TreeringSaver


def build() -> StateGraph:
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder


def model(state):
    said = [message.content for message in state["messages"] if isinstance(message, HumanMessage)]
    if said[-1] == "/hang":
        print(json.dumps({"hangs": len(said)}), flush=True)
        time.sleep(600)
    return {"messages": [AIMessage(f"You said: {', '.join(said)}")]}


def main() -> None:
    with treering.open(sys.argv[1]) as store:
        graph = build().compile(checkpointer=TreeringSaver(store))
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            channel, chat_id, text = line.rstrip("\n").split(" ", 2)
            chat = store.chat(channel, chat_id)
            if text == "/new":
                print(json.dumps({"thread": chat.reset().id}), flush=True)
                continue
            config = {"configurable": {"thread_id": chat.thread.id}}
            state = graph.invoke({"messages": [HumanMessage(text)]}, config, durability="sync")
            print(json.dumps({"thread": chat.thread.id, "says": state["messages"][-1].content}), flush=True)


if __name__ == "__main__":
    main()
