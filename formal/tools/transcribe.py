"""Lean's notation in ASCII, for documents that cannot hold Unicode."""

import unicodedata

from problem import Problem

_SYMBOLS = {
    "∀ ": "forall ",
    "∀": "forall ",
    "∃ ": "exists ",
    "∃": "exists ",
    "¬": "not ",
    "∧": "/\\",
    "∨": "\\/",
    "↔": "<->",
    "→": "->",
    "←": "<-",
    "↦": "=>",
    "⟨": "<",
    "⟩": ">",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "×": "x",
    "·": "*",
    "∘": "o",
    "∈": "in",
    "∉": "not in",
    "⊆": "subset",
    "∪": "union",
    "∩": "inter",
    "∅": "empty",
    "∑": "Sum",
    "∏": "Prod",
    "√": "sqrt",
    "∞": "infinity",
    "‖": "||",
    "↑": "cast ",
    "⌈": "ceil(",
    "⌉": ")",
    "⌊": "floor(",
    "⌋": ")",
    "ℝ": "Real",
    "ℕ": "Nat",
    "ℤ": "Int",
    "ℚ": "Rat",
    "𝔼": "E",
    "½": "1/2",
    "±": "+-",
    "−": "-",
    "–": "-",
    "—": "--",
    "…": "...",
    "≈": "~",
    "∣": "|",
    "⁻¹": "^-1",
    "⁻": "-",
    "∂": "d",
    "∫": "integral",
    "∸": "-",
    "⊢": "|-",
    "◁": "<|",
    "’": "'",
    "“": '"',
    "”": '"',
    "∥": "||",
    "⊤": "top",
    "⊥": "bot",
    "ℓ": "ell",
    "⋯": "...",
}
_GREEK_NAMES = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega
    varsigma varphi Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega
"""
_GREEK = dict(zip("αβγδεζηθικλμνξπρστυφχψωςϕΓΔΘΛΞΠΣΦΨΩ", _GREEK_NAMES.split(), strict=True))
_SUPERSCRIPT = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹ⁿᵏᵇˣ", "0123456789nkbx", strict=True))
_SUBSCRIPT = dict(zip("₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼ", "0123456789aeoxhklmnpstij", strict=True))
_MARKS = {"\u0303": "_tilde", "\u0302": "_hat", "\u0304": "_bar", "\u0301": "", "\u0300": "", "\u0308": ""}


def to_ascii(text: str) -> str:
    """The same text in ASCII; a character without a known transcription is an error, never dropped."""
    for symbol in sorted(_SYMBOLS, key=len, reverse=True):
        text = text.replace(symbol, _SYMBOLS[symbol])
    out, before = [], ""
    for c in unicodedata.normalize("NFD", text):
        if ord(c) < 128:
            out.append(c)
        elif c in _GREEK:
            out.append(_GREEK[c])
        elif c in _SUPERSCRIPT:
            out.append(("" if before in _SUPERSCRIPT else "^") + _SUPERSCRIPT[c])
        elif c in _SUBSCRIPT:
            out.append(("" if before in _SUBSCRIPT else "_") + _SUBSCRIPT[c])
        elif c in _MARKS:
            out.append(_MARKS[c])
        else:
            raise Problem(
                f"no ASCII transcription is known for {c!r} (U+{ord(c):04X}): add it to formal/tools/transcribe.py"
            )
        before = c
    return "".join(out)
