"""Prompts whose answers by the small model are short and reproducible."""

# Answered greedily with `A: "What do cats eat?"`, and then it stops.
JOKE = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello! How can I help?"},
    {"role": "user", "content": "Tell me a joke about cats."},
]
LONG = [{"role": "user", "content": "Write a very long story."}]
