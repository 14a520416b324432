"""Intents, dates and participants of questions, in each language that has a table."""

import pytest

from recallflow.language import LATIN, DateMention
from recallflow.operators.recall.intent import intent_of
from recallflow.operators.recall.question import Question, Vocabulary, understand

ASSUMED = {table.code: number for number, table in enumerate(LATIN)}


def ask(code: str, text: str, participants: tuple[str, ...] = ()) -> Question:
    return understand(text, participants, Vocabulary([ASSUMED.get(code, 0)]))


# When, whether the asker is meant, a preference, a summary, a procedure, a person.
QUESTIONS = {
    "de": (
        "Wann war ich beim Arzt?", "Was isst Anna am liebsten?", "Fass unser Gespräch zusammen.",
        "Wie kann ich das Passwort ändern?", "Wer kommt zur Feier?",
    ),
    "fr": (
        "Quand suis-je allée chez mon médecin ?", "Quel film Anna préfère-t-elle ?", "Résume notre conversation.",
        "Comment faire pour changer le mot de passe ?", "Qui vient à la fête ?",
    ),
    "es": (
        "¿Cuándo fui al médico con mi madre?", "¿Qué comida prefiere Anna?", "Resume nuestra conversación.",
        "¿Cómo puedo cambiar la contraseña?", "¿Quién viene a la fiesta?",
    ),
    "pt": (
        "Quando é que eu fui ao médico?", "O que a Anna prefere comer?", "Resuma a nossa conversa.",
        "Como posso mudar a senha?", "Quem vem à festa?",
    ),
    "it": (
        "Quando sono andato dal mio medico?", "Cosa preferisce Anna?", "Riassumi la nostra conversazione.",
        "Come posso cambiare la password?", "Chi viene alla festa?",
    ),
    "ru": (
        "Когда я был у врача?", "Что любит Анна?", "Подытожь наш разговор.", "Как мне настроить телефон?",
        "Кто придёт на праздник?",
    ),
    "tr": (
        "Ben doktora ne zaman gittim?", "Anna hangi yemeği tercih eder?", "Konuşmamızı özetle.",
        "Şifreyi nasıl kurabilirim?", "Kim geliyor?",
    ),
    "ar": (
        "متى ذهبت أنا إلى الطبيب؟", "ماذا تفضل سارة؟", "لخص محادثتنا", "كيف يمكنني تغيير كلمة السر؟",
        "من هو الذي سيأتي؟",
    ),
    "hi": (
        "मैं डॉक्टर के पास कब गया?", "अन्ना को क्या पसंद है?", "हमारी बातचीत का सारांश दो", "मैं पासवर्ड कैसे बनाऊं?",
        "कौन आ रहा है?",
    ),
    "zh": ("我什么时候去看的医生？", "安娜喜欢吃什么？", "总结一下我们的谈话", "怎么安装打印机？", "谁来参加聚会？"),
    "ja": (
        "私はいつ医者に行きましたか？", "アンナの好きな食べ物は？", "会話を要約して", "パスワードの変更方法は？",
        "誰がパーティーに来ますか？",
    ),
    "ko": (
        "내가 언제 병원에 갔어요?", "안나는 무엇을 좋아해요?", "대화를 요약해 줘", "어떻게 설치하나요?",
        "누가 파티에 와요?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", QUESTIONS)
def test_intents_of_questions(code: str) -> None:
    when, preference, summary, procedure, person = (ask(code, text) for text in QUESTIONS[code])
    assert (when.table.code, when.asks_when, when.first_person) == (code, True, True)
    assert not any([preference.asks_when, preference.first_person, person.first_person])
    expected = ["temporal", "preference", "summary", "procedural", "entity"]
    assert [intent_of(asked) for asked in (when, preference, summary, procedure, person)] == expected


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("de", "Was war am 8. März 2023 bei uns?", DateMention(2023, 3, 8)),
        ("de", "Was geschah am 08.03.2023 in der Schule?", DateMention(2023, 3, 8)),
        ("fr", "Que s'est-il passé le 1er août 2024 ?", DateMention(2024, 8, 1)),
        ("fr", "Que faisions-nous en aout ?", DateMention(None, 8, None)),
        ("es", "¿Qué pasó el 3 de mayo de 2021?", DateMention(2021, 5, 3)),
        ("pt", "O que aconteceu em março de 2020?", DateMention(2020, 3, None)),
        ("it", "Che cosa è successo il 25 dicembre?", DateMention(None, 12, 25)),
        ("ru", "Что было 9 мая 2022 года?", DateMention(2022, 5, 9)),
        ("tr", "23 Nisan 2019 günü ne oldu?", DateMention(2019, 4, 23)),
        ("ar", "ماذا حدث في ٥ يناير ٢٠٢٤؟", DateMention(2024, 1, 5)),
        ("hi", "15 अगस्त 2018 को क्या हुआ?", DateMention(2018, 8, 15)),
        ("zh", "2023年11月5日发生了什么？", DateMention(2023, 11, 5)),
        ("zh", "十二月有什么活动？", DateMention(None, 12, None)),
        ("ja", "3月5日に何をしましたか？", DateMention(None, 3, 5)),
        ("ko", "2020년 7월 3일에 무엇을 했나요?", DateMention(2020, 7, 3)),
        ("ko", "팔월에 무엇을 했나요?", DateMention(None, 8, None)),
    ],
)
def test_dates(code: str, text: str, expected: DateMention) -> None:
    assert ask(code, text).dates == (expected,)


@pytest.mark.parametrize(
    ("code", "text", "participant"),
    [
        ("zh", "小明喜欢吃什么？", "小明"), ("zh", "Anna喜欢吃什么？", "Anna"),
        ("ko", "민수가 좋아하는 음식은?", "민수"), ("ja", "健太はどこに住んでいますか？", "健太"),
        ("tr", "Ayşe'nin köpeği nerede?", "Ayşe"), ("ru", "Что подарили Анне?", "Анна"),
        ("de", "Was isst Annas Hund?", "Anna"),
    ],
)  # fmt: skip
def test_participants_are_named_as_their_language_has_it(code: str, text: str, participant: str) -> None:
    assert ask(code, text, (participant, "Bo")).named == (participant,)


def test_question_is_stemmed_in_each_language_of_the_memories() -> None:
    held = {"schwimmbad", "swim"}
    vocabulary = Vocabulary([0, ASSUMED["de"]], held.__contains__)
    assert understand("Which Schwimmbäder?", (), vocabulary).stems == ("schwimmbad",)
    assert understand("Who is swimming?", (), vocabulary).stems == ("swim",)
