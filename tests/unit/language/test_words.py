"""Words, questions, places and laws of texts in any language."""

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.language.analysis import (
    DateMention,
    analyse,
    find_dates,
    read_question,
    sentence_at,
    sentences,
    stems,
    table_of,
)
from recallflow.language.places import CHARACTERS_MOST, WORDS_MOST, StemPositions, find_stems
from recallflow.language.scripts import BEYOND_LATIN, KANA, UNSPACED_LETTER, grams, normalised, plain
from recallflow.language.tables import EVERY, LATIN
from recallflow.language.words import ascii_words, words
from recallflow.limits import QUERY_CHARACTERS, READ_CHARACTERS
from recallflow.operators.recall.question import Question, Vocabulary, analyse_question, intent_of
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.rows import Entry, language_in

CODES = [table.code for table in LATIN]


def shared(text: str, question: str) -> set[str]:
    table = table_of(question)
    asked = {stem for stems in read_question(question, table, [0]) for stem in stems}
    return asked & set(analyse(text).stems)


@pytest.mark.parametrize(
    ("text", "question", "stem"),
    [
        ("Ich bin allergisch gegen Nüsse.", "Welche Allergie gegen die Nuss habe ich?", "nuss"),
        (
            "Wir gehen gern in Schwimmbäder und kommen nie allein.",
            "Welche Schwimmbaeder sind die besten?",
            "schwimmbad",
        ),
        ("Es una canción muy bonita que me gusta.", "¿Qué canciones te gustan, y qué cancion no?", "cancion"),
        ("J'étudie la médecine et j'aime bien.", "Depuis quand j'etudie ?", "etud"),
        ("Minhas irmãs gostam de maçãs.", "Do que a minha irmã gosta?", "gost"),
        ("Mi piacciono le città piccole.", "Quali citta piccole mi piacciono?", "citt"),
        ("Моя ёлка стоит в углу.", "Где стоит елка?", "елк"),
        ("IŞIK evde hep açık kalıyor.", "Evdeki ışık neden açık?", "isik"),
        ("أَختي تعملُ في مدرسةٍ كبيرة", "أين تعمل أختي؟ في المدرسه؟", "مدرس"),
        ("मेरे पास दो क़िताबें हैं", "मेरी किताब कहाँ है?", "किताब"),
        ("민수가 도서관에서 책을 읽었어요", "민수는 무슨 책을 읽나요?", "책"),
        ("妹妹对花生过敏", "妹妹对什么过敏？", "过敏"),
        ("昨日カレーを食べました", "カレーはいつ食べたの？", "カレ"),
        ("ｶﾚｰ と ＰＣ を買った", "カレーとpcはどこで買った？", "pc"),
        ("ฉันแพ้กุ้ง", "แพ้กุ้งไหม", "แพ้"),
        ("Cafe\u0301 au lait, s'il te plaît, j'adore le matin.", "Est-ce que j'aime le café au lait ?", "caf"),
    ],
)
def test_a_question_meets_the_words_of_a_text(text: str, question: str, stem: str) -> None:
    assert stem in shared(text, question)


@pytest.mark.parametrize("text", ["I'm trying the café near Zoë's place, lol", "Running late 😀 “sorry”", "naïve"])
def test_english_is_read_as_english(text: str) -> None:
    reading = analyse(text)
    assert (reading.language, reading.stems) == (0, stems(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("妹妹对什么过敏", ["妹妹", "妹对", "过敏"]),
        ("茶", ["茶"]),
        ("他是成都的了解我的目的", ["成都", "了解", "目的"]),  # words that hold what elsewhere is a function word
        ("给他的", []),
        ("住んでいます", ["住", "んで"]),  # an ending is written in hiragana, and is no part of the word
        ("住みたい", ["住"]),
        ("お茶を飲みました", ["茶", "飲"]),
        ("ともだちと京都", ["とも", "もだ", "だち", "京都"]),  # と parts words before another, not within one
        ("我用Python写代码", ["用", "python", "写代", "代码"]),
        ("က", ["က"]),
    ],
)
def test_without_blanks_each_two_characters_are_a_word(text: str, found: list[str]) -> None:
    assert analyse(text).stems == found


def test_parts_of_a_word_follow_its_script() -> None:
    assert (grams("cat"), grams("a")) == (["<cat", "cat>"], ["<a>"])
    assert set(grams("茶")) <= set(grams("绿茶"))
    assert set(grams("먹었")) & set(grams("먹어"))  # by letters


def test_words_of_a_text_are_all_there_are() -> None:
    assert (words("I have TWO cats_1"), words("मेरी बहन")) == (["i", "have", "two", "cats_1"], ["मेरी", "बहन"])


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Café crème, naïve", "cafe creme naive"), ("Cafe\u0301", "café"), ("ＰＣ ２０２３", "pc 2023"),
        ("STRASSE", "Straße"), ("ЁЛКА", "елка"), ("مُعَلِّمَة إلى", "معلمة الى"), ("ｶﾚｰ", "カレー"),
    ],
)  # fmt: skip
def test_sloppy_spellings_are_normalised(text: str, same: str) -> None:
    assert words(text) == words(same)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Ich habe einen Hund", "de"), ("Mon chien s'appelle Rex et il est vieux", "fr"),
        ("Mi perro se llama Rex y es viejo", "es"), ("O meu cachorro é muito velho", "pt"),
        ("Il mio cane è molto vecchio", "it"), ("Köpeğim çok yaşlı", "tr"), ("Mein Hund heißt Rex", "de"),
        ("Rex!", "en"), ("Die Hard was the best film", "en"), ("Mon , Ethan called again . Mon ?", "en"),
    ],
)  # fmt: skip
def test_a_text_tells_its_language(text: str, code: str) -> None:
    assert CODES[analyse(text).language] == code


def test_unclear_text_has_the_assumed_language() -> None:
    german = CODES.index("de")
    assert analyse("Schwimmbäder?!", german).language == german
    unclear, assumed = analyse("Schwimmbad geschlossen"), analyse("Schwimmbad geschlossen", german)
    assert (unclear[-2:], assumed[-2:]) == ((0, False), (german, False))  # language, is_certain
    assert analyse("I think that it is closed", german).language == 0


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ("妹妹对什么过敏？", "zh"), ("妹は何のアレルギー？", "ja"), ("누구예요?", "ko"), ("Где ключ?", "ru"),
        ("متى؟", "ar"), ("कब?", "hi"),
        # names in another script do not decide
        ("What did Kim say about 寿司 yesterday?", "en"), ("Kim昨天在哪里吃的寿司？", "zh"),
    ],
)  # fmt: skip
def test_a_script_tells_its_language(question: str, code: str) -> None:
    assert table_of(question).code == code


def test_sentence_of_a_character_ends_behind_it() -> None:
    text = "No. No. We moved."
    assert [sentence_at(text, at) for at in (0, 4, 7, 16)] == [
        ("No.", 0), ("No.", 4), ("We moved.", 8), ("We moved.", 8),
    ]  # fmt: skip
    assert sentence_at(text, len(text)) == (text, 0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("我来了。你呢？走吧！", ["我来了。", "你呢？", "走吧！"]),
        ("「行くよ。」と言った。終わり", ["「行くよ。」と言った。", "終わり"]),
        ("मैं आया। तुम कब आओगे?", ["मैं आया।", "तुम कब आओगे?"]), ("هل جئت؟ نعم.", ["هل جئت؟", "نعم."]),
        ("One. Two! 3.5 three", ["One.", "Two!", "3.5 three"]), (" \n ", []),
    ],
)  # fmt: skip
def test_sentences_end_at_the_marks_of_their_script(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


@pytest.mark.parametrize(
    ("text", "asks", "ends"),
    [
        ("你好吗", True, True), ("你好。", False, False), ("元気ですか。", True, True), ("هل أنت بخير؟", True, True),
        ("어디 가니", True, True), ("什么？我不知道。", True, False), ("Ça va ? Oui.", True, False),
    ],
)  # fmt: skip
def test_questions_of_any_script_are_known(text: str, asks: bool, ends: bool) -> None:
    reading = analyse(text)
    assert (reading.has_question, reading.ends_in_question) == (asks, ends)


@pytest.mark.parametrize(
    "text",
    [
        "Gestern war ich im Kino und es war gut.", "La semaine dernière nous étions à Lyon.",
        "El lunes voy al médico con mi hermana.", "Ontem eu fui ao cinema com ela.",
        "Domenica andiamo al mare con loro.", "Вчера мы ходили в кино.", "Dün sinemaya gittik ve çok güzeldi.",
        "ذهبنا أمس إلى السينما", "हम कल सिनेमा गए थे", "我们昨天去看电影了", "昨日映画を見ました",
        "어제 영화를 봤어요",
    ],
)  # fmt: skip
def test_a_text_tells_a_time(text: str) -> None:
    assert analyse(text).has_time


ASSUMED = {table.code: number for number, table in enumerate(LATIN)}


def ask(code: str, text: str, participants: tuple[str, ...] = ()) -> Question:
    return analyse_question(text, participants, Vocabulary([ASSUMED.get(code, 0)]))


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
    assert analyse_question("Which Schwimmbäder?", (), vocabulary).stems == ("schwimmbad",)
    assert analyse_question("Who is swimming?", (), vocabulary).stems == ("swim",)


FACTS = sorted((Path(__file__).parent / "facts").glob("*.txt"))
TEXTS = [line.strip() for path in FACTS for line in path.read_text("utf-8").splitlines() if line.strip()]
WORDS = sorted({word for text in TEXTS for word in text.split()})
PIECES = st.sampled_from(
    [*WORDS, " ", "\n", "‐", "ﬁne", "ＣＡＦＥ", "İzmir", "I", "e\u0301te", "\u00ad", "©", "™", "½"]
)


def spelled(text: str, wanted: set[str], language: int) -> list[tuple[str, str]]:
    return [(text[start:end], kind) for kind, start, end in find_stems([text], [wanted], language)[0]]


def test_a_bent_word_is_shown_where_it_stands() -> None:
    text = "I moved from Leeds; moving was hard."
    assert find_stems([text], [{"move", "leed"}], 0)[0] == [("move", 2, 7), ("leed", 13, 18), ("move", 20, 26)]


@pytest.mark.parametrize(
    ("text", "wanted", "found"),
    [
        ("What does a doe eat?", {"doe"}, [("doe", "doe")]),  # a function word with a foreign stem is no match
        ("我妹妹对花生过敏。", {"妹妹", "过敏", "花生"}, [("妹妹", "妹妹"), ("花生", "花生"), ("过敏", "过敏")]),
        ("她住在波尔图市。", {"波尔", "尔图"}, [("波尔图", "波尔图")]),
        ("她每天喝咖啡。", {"喝"}, [("喝", "喝")]),
        ("\u00a0ＰＯＲＴＯ, ﬁnally!", {"porto", "final"}, [("ＰＯＲＴＯ", "porto"), ("ﬁnally", "final")]),
    ],
)
def test_found_words_are_shown_as_written(text: str, wanted: set[str], found: list[tuple[str, str]]) -> None:
    assert spelled(text, wanted, 0) == found


@pytest.mark.parametrize(
    ("code", "text", "word", "shown"),
    [("fr", "Cafe\u0301 au lait", "café", "Cafe\u0301"), ("tr", "ILIK bir gün", "ILIK", "ILIK")],
)
def test_letters_of_a_language_are_shown_as_written(code: str, text: str, word: str, shown: str) -> None:
    found = spelled(text, {*analyse(word, ASSUMED[code]).stems}, ASSUMED[code])
    assert [word for word, _ in found] == [shown]


@given(st.lists(PIECES, max_size=12).map(" ".join), st.integers(0, len(LATIN) - 1))
@example("İİİ Porto", 0)
@example("40. 40. 40. 40. 攒钱是为了去哪儿旅行？", 0)
def test_places_equal_the_stems_of_the_text(text: str, assumed: int) -> None:
    reading = analyse(text, assumed)
    beside = " щ" * bool(BEYOND_LATIN.search(text)) + " の" * bool(KANA.search(text))  # what decides how words are read
    for wanted in ({*reading.stems}, {*reading.stems[::3]}):
        found = find_stems([text], [wanted], reading.language)[0]
        ends = [0, *(one.end for one in found)]
        assert all(end <= one.start < one.end <= len(text) for end, one in zip(ends, found, strict=False))
        for _, start, end in found:
            if UNSPACED_LETTER.search(text[start:end]):  # what stands beside decides where its words begin
                assert any(stem in normalised(text[start:end]) for stem in wanted)
                continue
            alone = find_stems([text[start:end] + beside], [wanted], reading.language)[0]
            assert (alone[0].start, alone[-1].end) == (0, end - start)
        assert bool(found) == bool(wanted)


@pytest.mark.parametrize("text", TEXTS[::7])
def test_all_words_of_a_fact_are_found(text: str) -> None:
    reading = analyse(text)
    kinds = "".join(kind for kind, _, _ in find_stems([text], [{*reading.stems}], reading.language)[0])
    assert all(stem in kinds for stem in reading.stems)


@given(st.lists(st.lists(PIECES, max_size=6).map(" ".join), max_size=4), st.sampled_from([0, ASSUMED["de"]]))
def test_texts_are_searched_together_as_each_alone(texts: list[str], language: int) -> None:
    wanted = [{*analyse(text, language).stems} for text in texts[1:] + texts[:1]]
    alone = [find_stems([text], [stems], language)[0] for text, stems in zip(texts, wanted, strict=True)]
    assert find_stems(texts, wanted, language) == alone


@given(st.lists(PIECES, max_size=12).map(" ".join), st.integers(0, len(LATIN) - 1))
def test_kept_stems_have_the_spans_that_a_search_finds(text: str, language: int) -> None:
    ascii_text = text.encode("ascii", "ignore").decode()
    numbers = {stem: at for at, stem in enumerate(dict.fromkeys(analyse(ascii_text, language).stems))}
    placed = StemPositions.of(ascii_text, language, numbers.get)
    assert (placed is None) == (language == ASSUMED["tr"])
    if placed is not None:
        found = defaultdict(list)
        for stem, start, end in find_stems([ascii_text], [{*numbers}], language)[0]:
            found[stem].append((start, end))
        assert placed.find({chr(number): stem for stem, number in numbers.items()}) == found


@pytest.mark.parametrize("beside", ["", " é"])
def test_many_different_words_are_looked_up_to_a_limit(beside: str) -> None:
    words = [f"w{number}" for number in range(2 * WORDS_MOST)]
    text = " ".join(words) + beside
    assert [text[start:end] for _, start, end in find_stems([text], [{words[1], words[-1]}], 0)[0]] == [words[1]]


@pytest.mark.parametrize("word", ["чай", "茶"])
def test_long_text_in_another_script_is_read_from_its_beginning(word: str) -> None:
    text = f"{word} да " * CHARACTERS_MOST
    (found,) = find_stems([text], [{*analyse(word).stems}], 0)
    assert found[0].start == 0
    assert CHARACTERS_MOST - len(text) / CHARACTERS_MOST < found[-1].end <= CHARACTERS_MOST


# Of every script that has a table, those without blanks, marks that stack up, joined emoji, and what is not seen.
SCRIPT_PIECES = (
    "The cat's", "Straße", "İstanbul'da", "ÇAĞRI", "où", "Ёлка", "مُعَلِّمَة", "क़िताबें", "我了解成都的", "茶", "食べました",
    "カレー", "ｶﾚｰ", "한국어를", "แพ้กุ้ง", "ខ្មែរ", "မြန်မာ", "ພາສາລາວ", "ΑΣ", "Հայերեն", "தமிழ்", "ßﬁ²™", "２０２３年",
    "\u0301\u0323", "\u0301\u200d\u0323", "\u200d", "👨\u200d👩\u200d👧", "🇩🇪", "\u202e", "\x00", "\ufeff",
    "_", "1.000,5", "?", "。", "؟", "\n", " ",
)  # fmt: skip
ANY_TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.lists(st.sampled_from(SCRIPT_PIECES), max_size=15).map("".join),
    st.lists(st.sampled_from(SCRIPT_PIECES), max_size=15).map(" ".join),
)


def analysed(text: str) -> object:
    every = range(len(LATIN))
    found = [analyse(text, assumed) for assumed in every]
    asked = [read_question(text, table, every) for table in EVERY]
    dates = [find_dates(text, table, 8) for table in EVERY]
    question = analyse_question(text, ["Ann", "小明", "Ёжик"], Vocabulary(every))
    parts = [grams(word) for word in words(text)]
    return found, asked, dates, question, intent_of(question), parts, sentences(text), plain(text), table_of(text).code


@given(ANY_TEXTS)
def test_any_text_is_analysed_the_same_each_time(text: str) -> None:
    assert analysed(text) == analysed(text)
    assert plain(plain(text)) == plain(text)


@given(ANY_TEXTS)
def test_stems_are_words_without_blanks_around_them(text: str) -> None:
    # They are stored with blanks between them.
    for assumed in range(len(LATIN)):
        stems = analyse(text, assumed).stems
        assert " ".join(stems).split(" ") == (stems or [""])


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_words_equal_those_of_the_pattern(text: str) -> None:
    assert ascii_words(text) == re.findall(r"\w+", text.lower())


@pytest.mark.processes
@pytest.mark.parametrize("seed", ["1", "2"])
def test_analysis_does_not_depend_on_the_hash_seed(seed: str) -> None:
    texts = ["Der Hund und die Katze sind müde.", "我了解成都的茶", "Anna è a Roma con me"]
    program = (
        "import sys; from recallflow.language.analysis import analyse; print([*map(analyse, sys.argv[1:])], end='')"
    )
    command = [sys.executable, "-c", program, *texts]
    run = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True)
    assert run.stdout.decode() == str([analyse(text) for text in texts])


@pytest.mark.parametrize("piece", SCRIPT_PIECES, ids=ascii)
def test_analysis_size_is_linear_in_the_text(piece: str) -> None:
    """The longest text of one repeated piece, which a backtracking pattern would never finish: n characters give at
    most n words, and five parts each."""
    text = (piece * READ_CHARACTERS)[:READ_CHARACTERS]
    every = range(len(LATIN))
    stems = analyse(text).stems
    spelt = words(text)
    assert len(stems) <= len(text)
    assert sum(len(grams(word)) for word in spelt) <= 5 * len(text)
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
    analyse_question(text[:QUERY_CHARACTERS], ["Ann", "小明"], Vocabulary(every))


GERMAN, ENGLISH = "Ich gehe heute nicht zur Schule.", "I am not going to school today."
UNCLEAR = "Schwimmbaeder geschlossen"
SETTINGS = Settings(partitions=1)


WHO = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2026-01-31T12:00:00Z"}


def write(path: Path, *events: dict[str, str]) -> None:
    assert not process([orjson.dumps(WHO | event) for event in events], SETTINGS, path).rejected


def message(name: str, content: str) -> dict[str, str]:
    return {"type": "message", "id": name, "role": "user", "content": content}


def entries(path: Path) -> dict[str, tuple[str, str]]:
    """Id → the language that a memory was read in, and its stems."""
    with StateDirectory.existing(path) as directory:
        (partition,) = directory.partitions()
        found = [Entry.decode(value) for key, value in partition.scan(keys.OWNERS) if keys.split(key)[1] == keys.ENTRY]
    return {entry.id: (LATIN[language_in(entry.flags)].code, entry.stems) for entry in found}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], ("en", "schwimmbaed geschlossen")), ([GERMAN], ("de", "schwimmbad geschloss")),
        ([GERMAN, ENGLISH], ("en", "schwimmbaed geschlossen")), ([ENGLISH, GERMAN], ("de", "schwimmbad geschloss")),
    ],
)  # fmt: skip
def test_the_last_text_that_told_its_language_counts(
    tmp_path: Path, before: list[str], expected: tuple[str, str]
) -> None:
    write(tmp_path / "s", *(message(f"b{at}", text) for at, text in enumerate(before)), message("last", UNCLEAR))
    assert entries(tmp_path / "s")["last"] == expected


def test_assumed_language_survives_a_restart_and_a_new_version(tmp_path: Path) -> None:
    write(tmp_path / "s", message("first", GERMAN))
    write(tmp_path / "s", message("second", "Rex"))
    write(tmp_path / "s", {"type": "memory.update", "memory_id": "second", "content": UNCLEAR})
    assert entries(tmp_path / "s")["second"] == ("de", "schwimmbad geschloss")


FOUND = 17  # of 20, as the first of three


def asked(file: Path) -> list[tuple[str, str]]:
    """Facts with their questions."""
    lines = file.read_text("utf-8").splitlines()
    return [(fact, question) for fact, question in (line.split(" | ") for line in lines)]


def found_ids(pairs: dict[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Return, by the id of a fact, the ids of the memories that one owner's question about it finds."""
    facts = [WHO | {"type": "memory", "id": id_, "content": fact} for id_, (fact, _) in pairs.items()]
    questions = [WHO | {"type": "recall", "id": id_, "query": asked, "k": 3} for id_, (_, asked) in pairs.items()]
    responses = process(map(orjson.dumps, [*facts, *questions]), SETTINGS).responses
    return {answer["query_id"]: [memory["id"] for memory in answer["memories"]] for answer in responses}


@pytest.mark.slow
@pytest.mark.parametrize("file", FACTS, ids=lambda file: file.stem)
def test_facts_are_found_in_each_language(file: Path) -> None:
    pairs = asked(file)
    assert len(pairs) == 20
    found = found_ids({str(at): pair for at, pair in enumerate(pairs)})
    missed = [pairs[int(id_)] for id_, ids in found.items() if ids[0] != id_]
    assert len(missed) <= len(pairs) - FOUND, missed


@pytest.mark.slow
def test_one_owner_may_use_all_languages() -> None:
    assert len(FACTS) == 13
    told = sorted((at, file.stem, *pair) for file in FACTS for at, pair in enumerate(asked(file)))
    answers = found_ids({f"{code}-{at}": (fact, question) for at, code, fact, question in told})
    found = Counter(id_.partition("-")[0] for id_, ids in answers.items() if id_ in ids)
    assert {file.stem: found[file.stem] for file in FACTS if found[file.stem] < FOUND} == {}
