"""The language of a text, from its script and its most frequent function words."""

import string
import unicodedata
from collections import Counter

WORDS = {
    "en": "the of and to in a is that it for was on are with as i this have from you your he they",
    "de": "der die und das ist nicht ich ein eine zu den mit sich auf für von dem es des im sie",
    "es": "de la que el en y a los se del las por un para con no una es su al lo como más pero",
    "fi": "ja on ei että se oli hän mutta kun kuin myös ovat tai niin joka jos sen olla mitä tämä",
    "fr": "de la le et les des en un du une que est pour qui dans par plus pas au sur ne se ce il",
    "id": "yang dan di untuk dengan ini itu dari tidak adalah dalam pada akan ke anda saya bisa",
    "it": "di e il la che in a per un è con non una sono del si della da le i più gli al come mi",
    "nl": "de het een van en in is dat op te zijn met voor niet aan er om ook als je maar wordt",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como ao você",
    "sw": "ya na wa kwa ni katika la za cha kuwa hii kama lakini yake hiyo au pia hili huu vya",
    "vi": "và của là không có được một những người với các này trong đó để khi bạn tôi đã sẽ",
    "bg": "и на да се за от в е не с са това по като ще си но до което ли при или че има може",
    "ru": "и в не на что с по это как он я но из к у то за от для так же его вы или мы все бы",
    "uk": "і в на не що з та до це як у за для від є про його але або ви ми щоб може при",
    "ar": "في من على أن إلى التي عن مع هذا لا ما هذه الذي كان هو أو ذلك هي كل لم قد ثم بعد",
    "fa": "و در به از که این را با است برای آن یک خود تا کرد بر هم نیز می شود ما شما هر یا",
    "ur": "کے میں کی ہے اور سے کا کو ہیں کہ نے پر اس یہ ایک نہیں بھی کر تو ہو جو آپ کیا ہم",
    "hi": "के में है की और से का को हैं पर यह नहीं एक कि इस भी हो ने तो लिए आप जो या कर",
    "mr": "आणि आहे या आहेत ते हे तो ही नाही मध्ये आपण व साठी केले हा एक पण किंवा असे होते तर काय",
    "ne": "र छ छन् यो पनि लागि हो गर्न भएको को मा तपाईं भने थियो छैन एक वा तर हुन्छ यस कुनै गरेको",
}
"""Frequent words by ISO 639-1 code, for scripts that several languages share."""

PARTS = {
    "de": "ä ö ü ß", "es": "ñ ¿ ¡ á é í ó", "fi": "ä ö", "fr": "é è ê à ç œ ù", "it": "è à ò ù",
    "pt": "ã õ ç ê á é í ó", "vi": "ă đ ơ ư ạ ả ấ ế ề ể ệ ị ọ ố ồ ộ ớ ờ ợ ụ ữ ự",
    "bg": "ъ", "ru": "ы э ё ть", "uk": "і ї є ґ",
    "ar": "ي ك ة ى أ إ", "fa": "پ چ ژ گ ی ک", "ur": "ٹ ڈ ڑ ں ے ہ ھ پ چ ژ گ ی ک",
    "hi": "\N{DEVANAGARI SIGN NUKTA}", "mr": "ळ च्या ण्या", "ne": "हरू लाई न्छ",
}  # fmt: skip
"""Letters and parts of words that are frequent there and rare in others of the script."""

SCRIPTS = {
    "LATIN": "en de es fi fr id it nl pt sw vi", "CYRILLIC": "bg ru uk", "ARABIC": "ar fa ur",
    "DEVANAGARI": "hi mr ne", "BENGALI": "bn", "GUJARATI": "gu", "GURMUKHI": "pa", "HANGUL": "ko",
    "KANNADA": "kn", "TAMIL": "ta", "TELUGU": "te", "THAI": "th",
}  # fmt: skip
"""Languages by script; the first is that of a text without evidence."""
LANGUAGES = sorted(" ".join(SCRIPTS.values()).split())
_MARKS = string.punctuation + "“”‘’«»…—–¿¡،؟؛।۔"


def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's language; None without letters of a known script.

    The script that most of the letters have decides; among the languages of one script, that with
    the most frequent words and parts in the text.
    """
    text = unicodedata.normalize("NFC", text).lower()
    scripts = Counter(unicodedata.name(c, "").partition(" ")[0] for c in text if c.isalpha())
    codes = SCRIPTS.get(scripts.most_common(1)[0][0] if scripts else "", "").split()
    words = Counter(word.strip(_MARKS) for word in text.split())

    def evidence(code: str) -> int:
        frequent, parts = WORDS.get(code, "").split(), PARTS.get(code, "").split()
        return sum(words[word] for word in frequent) + sum(text.count(part) for part in parts)

    return max(codes, key=evidence, default=None)
