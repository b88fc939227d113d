"""Output for people: the demo."""
