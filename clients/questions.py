"""What the small model is asked, so that its answers are short and the same every time."""

# Answered greedily with `A: "What do cats eat?"`, and then it stops.
JOKE = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello! How can I help?"},
    {"role": "user", "content": "Tell me a joke about cats."},
]
LONG = [{"role": "user", "content": "Write a very long story."}]
