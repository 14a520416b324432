"""Words and stems in any language, and those common to a text and a question."""

import pytest

from recallflow.language import LATIN, grams, read, read_question, sentence_at, sentences, stems, table_of, words

CODES = [table.code for table in LATIN]


def shared(text: str, question: str) -> set[str]:
    table = table_of(question)
    asked = {stem for stems in read_question(question, table, [0]) for stem in stems}
    return asked & set(read(text).stems)


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
    reading = read(text)
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
    assert read(text).stems == found


def test_single_character_is_part_of_its_words() -> None:
    assert set(grams("茶")) <= set(grams("绿茶"))


def test_a_korean_word_is_spelt_by_letters() -> None:
    assert set(grams("먹었")) & set(grams("먹어"))


def test_the_parts_of_an_english_word_are_each_four_letters() -> None:
    assert grams("cat") == ["<cat", "cat>"]
    assert grams("a") == ["<a>"]


def test_words_of_a_text_are_all_there_are() -> None:
    assert words("I have TWO cats_1") == ["i", "have", "two", "cats_1"]
    assert words("मेरी बहन") == ["मेरी", "बहन"]


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
    assert CODES[read(text).language] == code


def test_unclear_text_has_the_assumed_language() -> None:
    german = CODES.index("de")
    assert read("Schwimmbäder?!", german).language == german
    unclear, assumed = read("Schwimmbad geschlossen"), read("Schwimmbad geschlossen", german)
    assert (unclear.language, unclear.sure) == (0, False)
    assert (assumed.language, assumed.sure) == (german, False)
    assert read("I think that it is closed", german).language == 0


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ("妹妹对什么过敏？", "zh"), ("妹は何のアレルギー？", "ja"), ("누구예요?", "ko"), ("Где ключ?", "ru"),
        ("متى؟", "ar"), ("कब?", "hi"),
    ],
)  # fmt: skip
def test_a_script_tells_its_language(question: str, code: str) -> None:
    assert table_of(question).code == code


def test_names_among_other_scripts_do_not_decide() -> None:
    assert table_of("What did Kim say about 寿司 yesterday?").code == "en"
    assert table_of("Kim昨天在哪里吃的寿司？").code == "zh"


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
        ("मैं आया। तुम कब आओगे?", ["मैं आया।", "तुम कब आओगे?"]),
        ("هل جئت؟ نعم.", ["هل جئت؟", "نعم."]),
        ("One. Two! 3.5 three", ["One.", "Two!", "3.5 three"]),
        (" \n ", []),
    ],
)
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
    reading = read(text)
    assert (reading.asks, reading.ends_asking) == (asks, ends)


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
    assert read(text).tells_time
