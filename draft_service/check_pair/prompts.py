"""A dozen prompts of our own to try a pair on: chat, code, sums, lists, translation, a summary."""

from __future__ import annotations

PROMPTS = (
    "Why does bread rise when it is baked?",
    "Write a Python function that returns the longest word of a sentence.",
    "A ticket costs 14 euros and a drink 3. How much do two tickets and four drinks cost? Show each step.",
    "List six things to pack for a weekend at the sea, with a reason for each.",
    "Translate into French, Spanish and German: The shop opens at nine in the morning.",
    "Summarise in two sentences: The old bridge was closed in March after engineers had found cracks in two of its "
    "pillars. Traffic now takes the ring road, which adds a quarter of an hour to most journeys. Repairs are to begin "
    "in June and to last until the end of the year.",
    "Explain to a beginner what a database index is and when it does harm.",
    "Write an email that asks a landlord to repair a dripping tap.",
    "Tell a short story about a fox who learns to play the cello.",
    'Turn this into a JSON array of objects with the keys "name" and "age": Ada is 36, Ben is 41, Cleo is 29.',
    "What are the differences between a virus and a bacterium? Answer with a table.",
    "Write an SQL query for the ten customers with the highest turnover in the last month.",
)
