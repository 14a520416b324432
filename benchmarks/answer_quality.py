"""Answers of a language model over the memories of each system, judged by the same model (`leaderboard --answer-with`).

The prompts, the model and the budgets are the same for all systems. Questions without an expected answer are left out.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from openai import OpenAI
from pydantic import BaseModel

from benchmarks.locomo import Question, Turn

Form = TypeVar("Form", bound=BaseModel)
AT_ONCE = 8  # calls
ASK = """\
Answer the question from these messages alone, in at most two sentences. If they do not hold the answer, say "unknown".

{messages}

Question: {question}"""
JUDGE = """\
Does the answer state what the expected answer states? Other words, more detail and other formats of a date are right; \
"unknown" is wrong.

Question: {question}
Expected answer: {expected}
Answer: {answer}"""


class Answered(BaseModel):
    """An answer to a question."""

    answer: str


class Verdict(BaseModel):
    """Whether an answer is right."""

    is_correct: bool


@dataclass(frozen=True, slots=True)
class AnsweringModel:
    """A model of any service that speaks OpenAI's protocol."""

    client: OpenAI
    model: str

    def share_correct(self, asked: Sequence[tuple[Question, Sequence[Turn]]]) -> float | None:
        """Return the share of questions that are answered correctly from these turns, or None without a question that
        has an expected answer."""
        known = [(question, turns) for question, turns in asked if question.answer]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            correct = [*pool.map(self._is_correct, known)]
        return sum(correct) / len(correct) if correct else None

    def _is_correct(self, asked: tuple[Question, Sequence[Turn]]) -> bool:
        question, turns = asked
        messages = "\n".join(f"[{turn.time:%Y-%m-%d}] {turn.memory}" for turn in turns)
        answer = self._complete(ASK.format(messages=messages, question=question.text), Answered).answer
        judged = JUDGE.format(question=question.text, expected=question.answer, answer=answer)
        return self._complete(judged, Verdict).is_correct

    def _complete(self, prompt: str, form: type[Form]) -> Form:
        completion = self.client.chat.completions.parse(
            model=self.model, messages=[{"role": "user", "content": prompt}], temperature=0, response_format=form
        )
        parsed = completion.choices[0].message.parsed
        if parsed is None:
            raise ValueError(f"{self.model} refused to answer: {prompt}")
        return parsed
