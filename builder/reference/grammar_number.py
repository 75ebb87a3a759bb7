"""Numbers within bounds, byte by byte.

Owns: which byte may come next in a JSON number so that it can still become one of the allowed values.
Does not know: schemas, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

DIGITS_MAX = 18
EXPONENT_DIGITS_MAX = 2
"""So that no number is beyond binary64."""
FINISHING_BYTES = b"0123456789.-"


@dataclass(frozen=True)
class NumberRule:
    """Values are whole numbers of 10^-decimals from `low` to `high` that `step` divides; `digits` may stand
    before the point. Without bounds an exponent may follow, and any value will do."""

    is_bounded: bool = False
    digits: int = DIGITS_MAX
    decimals: int = DIGITS_MAX
    low: int = 0
    high: int = 0
    step: int = 1

    def holds(self, low: int, high: int) -> bool:
        """Whether one of the numbers from `low` to `high` is a value."""
        bottom, top = max(low, self.low), min(high, self.high)
        return bottom <= top and top // self.step * self.step >= bottom

    def may_become(self, text: str) -> bool:
        """Whether the text is the start of a value."""
        shape = _split(text, self)
        if shape is None:
            return False
        if not self.is_bounded:
            return True
        sign, whole, fraction = shape
        unit = 10**self.decimals
        if not whole:
            spans = [(0, 10**self.digits * unit - 1)]
        elif fraction is not None:
            rest = 10 ** (self.decimals - len(fraction))
            value = int(whole + fraction)
            spans = [(value * rest, (value + 1) * rest - 1)]
        else:
            more_max = 0 if whole == "0" else self.digits - len(whole)
            rests = [10**more * unit for more in range(more_max + 1)]
            spans = [(int(whole) * rest, (int(whole) + 1) * rest - 1) for rest in rests]
        return any(self.holds(*sorted((sign * low, sign * high))) for low, high in spans)

    def is_value(self, text: str) -> bool:
        """Whether the number may end here."""
        if not text or text[-1] not in "0123456789":
            return False
        if not self.is_bounded:
            return True
        sign, whole, fraction = _split(text, self) or (1, "", None)
        value = sign * int(whole + (fraction or "")) * 10 ** (self.decimals - len(fraction or ""))
        return self.holds(value, value)

    def finish(self, text: str) -> str:
        """The shortest end's rule: the first byte that fits, until the number may end."""
        start = len(text)
        while not self.is_value(text):
            text += next(c for c in FINISHING_BYTES.decode() if self.may_become(text + c))
        return text[start:]


def _split(text: str, rule: NumberRule) -> tuple[int, str, str | None] | None:
    """Sign, digits before the point and behind it (None without a point); None if this starts no number."""
    sign = -1 if text.startswith("-") else 1
    mantissa, has_exponent, exponent = text.removeprefix("-").replace("E", "e").partition("e")
    whole, has_point, fraction = mantissa.partition(".")
    ends_in_digits = bool(whole) and (not has_point or bool(fraction))
    if has_exponent and (rule.is_bounded or not ends_in_digits):
        return None
    power = exponent[1:] if exponent[:1] in ("+", "-") else exponent
    if not all(part == "" or (part.isascii() and part.isdigit()) for part in (whole, fraction, power)):
        return None
    if (len(whole) > 1 and whole[0] == "0") or len(whole) > rule.digits or len(power) > EXPONENT_DIGITS_MAX:
        return None
    if has_point and (not whole or rule.decimals == 0 or len(fraction) > rule.decimals):
        return None
    return sign, whole, fraction if has_point else None
