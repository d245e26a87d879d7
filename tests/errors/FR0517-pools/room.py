class Room:
    """Two speak in turn; the answer of the first counts."""

    def reset(self, answer, seed):
        self.answer, self.turns = answer, 0
        return [{"role": "user", "content": f"Debate {seed}."}]

    def step(self, message):
        self.turns += 1
        return message, float(message == self.answer), self.turns == 6
