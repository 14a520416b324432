"""Answers of a language model over the memories of each system, judged by the same model (`leaderboard --answer-with`).

The prompts, the model and the budgets are the same for all systems. Questions without an expected answer are left out.
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from openai import APIConnectionError, OpenAI, OpenAIError
from pydantic import BaseModel

from benchmarks.locomo import Question, Turn

Form = TypeVar("Form", bound=BaseModel)
AT_ONCE = 8  # calls
TIMEOUT_S = 60.0  # of one try; the client repeats a failed call twice
GIVE_UP = 8  # calls in a row without a response, after which the service is not called again
# Of a call: HTTP and transport, a cut answer; a refusal, a body that is no JSON or of another form.
FAILURES = (OpenAIError, ValueError, TypeError, AttributeError)
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


class Outcome(NamedTuple):
    """A model's answer to a question and its verdict, or the reason why a call failed."""

    answer: str = ""
    is_correct: bool = False
    failure: str = ""


@dataclass(slots=True)
class AnsweringModel:
    """A model of any service that speaks OpenAI's protocol."""

    client: OpenAI
    model: str
    unanswered: int = 0  # calls in a row without a response

    @classmethod
    def checked(cls, url: str, model: str) -> Self:
        """Return the model after a trial call. Exit if it fails: the key or the URL is wrong, say."""
        # A local service needs no key, but the client does.
        key = os.environ.get("OPENAI_API_KEY") or "none"
        found = cls(OpenAI(base_url=url, api_key=key, timeout=TIMEOUT_S), model)
        try:
            found._complete("What is 1 + 1?", Answered)
        except FAILURES as error:
            sys.exit(f"{model} at {url} does not answer ({error}): check URL, --answer-model and OPENAI_API_KEY")
        return found

    def answer_all(self, asked: Sequence[tuple[Question, Sequence[tuple[Turn, str]]]]) -> list[Outcome]:
        """Answer and judge each question from these turns and their texts. A failed call is a wrong answer.

        After GIVE_UP calls in a row without a response, all further calls fail at once: a hung service must not hold up
        the run.
        """
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [*pool.map(lambda one: self._answer(*one), asked)]

    def _answer(self, question: Question, turns: Sequence[tuple[Turn, str]]) -> Outcome:
        if self.unanswered >= GIVE_UP:
            return Outcome(failure=f"not asked: {GIVE_UP} calls in a row had no response")
        lines = [f"[{turn.time:%Y-%m-%d}] {turn.speaker or turn.role or 'fact'}: {text}" for turn, text in turns]
        lines += ["", f"Today is {question.asked:%Y-%m-%d}."] if question.asked else []
        answer = ""
        try:
            prompt = ASK.format(messages="\n".join(lines), question=question.text)
            answer = self._complete(prompt, Answered).answer
            judged = JUDGE.format(question=question.text, expected=question.answer, answer=answer)
            outcome = Outcome(answer, self._complete(judged, Verdict).is_correct)
        except APIConnectionError as error:  # timeouts too
            self.unanswered += 1
            return Outcome(answer, failure=f"{type(error).__name__}: {error}"[:200])
        except FAILURES as error:
            outcome = Outcome(answer, failure=f"{type(error).__name__}: {error}"[:200])
        self.unanswered = 0
        return outcome

    def _complete(self, prompt: str, form: type[Form]) -> Form:
        completion = self.client.chat.completions.parse(
            model=self.model, messages=[{"role": "user", "content": prompt}], temperature=0, response_format=form
        )
        parsed = completion.choices[0].message.parsed if completion.choices else None
        if parsed is None:
            raise ValueError("no answer, or a refusal")
        return parsed
