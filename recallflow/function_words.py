"""Words that carry grammar, not content, and the words questions are built with. A chat's contractions come apart at
the apostrophe, so their halves stand here too."""

FUNCTION_WORDS = frozenset(
    word
    for line in (
        # articles, determiners, quantifiers
        "the an this that these those some any each every all both either neither no nor none such same other another",
        "much many more most few fewer little less least several enough own",
        # pronouns
        "me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers",
        "herself it its itself they them their theirs themselves one ones someone somebody something anyone anybody",
        "anything everyone everybody everything nobody nothing there here",
        # be, have, do, modal verbs, and their contracted halves
        "am is are was were be been being have has had having do does did doing done will would shall should can could",
        "may might must ought ll ve re don didn doesn isn aren wasn weren hasn haven hadn won wouldn shouldn couldn",
        "mustn ain let gonna wanna gotta",
        # prepositions
        "of in on at by for with about against between into through during before after above below to from up down",
        "out off over under around across along behind beside besides beyond near onto per toward towards upon via",
        "within without among amongst like unlike as than until till since",
        # conjunctions and connecting adverbs
        "and or but if then else because so though although while whereas whether however therefore also too yet",
        "again further once only just even still already ever never not very really quite rather almost",
        # question words
        "what which who whom whose when where why how",
        # of a conversation
        "oh hey hi hello yes yeah yep ok okay well hmm um uh wow lol thanks thank please",
    )
    for word in line.split()
)
