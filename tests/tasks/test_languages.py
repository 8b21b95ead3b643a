"""The language of short texts that were written for this test."""

from __future__ import annotations

import pytest

from clbench.tasks.languages import LANGUAGES, language_of

TEXTS = {
    "ar": "ذهبت إلى السوق في الصباح ثم عدت إلى البيت مع أخي.",
    "bg": "Сутринта отидох на пазара, а след това се прибрах с брат си.",
    "bn": "আমি সকালে বাজারে গিয়েছিলাম।",
    "de": "Am Morgen ging ich auf den Markt und kam dann mit meinem Bruder nach Hause.",
    "en": "IN THE MORNING I WENT TO THE MARKET WITH MY BROTHER.",
    "es": "Por la mañana fui al mercado y luego volví a casa con mi hermano.",
    "fa": "صبح به بازار رفتم و بعد با برادرم به خانه برگشتم.",
    "fi": "Aamulla kävin torilla ja sitten palasin kotiin veljeni kanssa.",
    "fr": "Le matin je suis allé au marché, puis je suis rentré à la maison avec mon frère.",
    "gu": "હું સવારે બજારમાં ગયો હતો.",
    "hi": "मैं सुबह बाज़ार गया और फिर अपने भाई के साथ घर लौट आया।",
    "id": "Pagi ini saya pergi ke pasar dan kemudian pulang ke rumah dengan adik saya.",
    "it": "La mattina sono andato al mercato e poi sono tornato a casa con mio fratello.",
    "kn": "ನಾನು ಬೆಳಿಗ್ಗೆ ಮಾರುಕಟ್ಟೆಗೆ ಹೋದೆ.",
    "ko": "아침에 시장에 갔다가 동생과 집에 왔다.",
    "mr": "मी सकाळी बाजारात गेलो आणि मग भावासोबत घरी परत आलो.",
    "ne": "म बिहान बजार गएँ र त्यसपछि भाइसँग घर फर्किएँ।",
    "nl": "In de ochtend ging ik naar de markt en daarna met mijn broer naar het huis.",
    "pa": "ਮੈਂ ਸਵੇਰੇ ਬਾਜ਼ਾਰ ਗਿਆ ਸੀ।",
    "pt": "De manhã fui ao mercado e depois voltei para casa com o meu irmão.",
    "ru": "Утром я пошёл на рынок, а потом вернулся домой с братом.",
    "sw": "Asubuhi nilienda sokoni na kisha nikarudi nyumbani kwa ndugu yangu.",
    "ta": "நான் காலையில் சந்தைக்குச் சென்றேன்.",
    "te": "నేను ఉదయం మార్కెట్‌కు వెళ్ళాను.",
    "th": "ตอนเช้าฉันไปตลาด",
    "uk": "Вранці я пішов на ринок, а потім повернувся додому з братом.",
    "ur": "میں صبح بازار گیا اور پھر اپنے بھائی کے ساتھ گھر واپس آیا۔",
    "vi": "Buổi sáng tôi đi chợ và sau đó về nhà với em trai.",
}


def test_every_language_has_a_text() -> None:
    assert sorted(TEXTS) == LANGUAGES


@pytest.mark.parametrize("code", LANGUAGES)
def test_languages_of_sentences(code: str) -> None:
    assert language_of(TEXTS[code]) == code


@pytest.mark.parametrize("text", ["", " \n", "123, 4!", "東京へ行きました。"])
def test_no_language_without_letters_of_a_script_in_the_table(text: str) -> None:
    assert language_of(text) is None


def test_most_of_the_letters_decide_on_the_script() -> None:
    assert language_of("Here is what you asked for, in Korean: 안녕") == "en"
    assert language_of("OK: 아침에 시장에 갔다가 동생과 집에 왔다.") == "ko"


def test_a_text_without_a_frequent_word_is_taken_for_english() -> None:
    assert language_of("autumn moonlight glows") == "en"
