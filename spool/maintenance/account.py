"""Which commits are gone for good: an account that is small enough to keep, and tells when somebody deleted a file.

Every number up to the published one either has its file or was reclaimed. Reclaim keeps count and sum of the numbers
that it removed, in the fact with the totals, and names there those that it may not have removed yet. So what is
missing beside them is noticed, and if it is one file, it is known which.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Self

_MODULUS = 2**64  # msgpack's largest integers; far above any difference of two accounts


class Account(NamedTuple):
    """How many numbers, and their sum modulo 2**64."""

    many: int = 0
    total: int = 0

    def plus(self, numbers: Collection[int]) -> Self:
        return self._replace(many=self.many + len(numbers), total=(self.total + sum(numbers)) % _MODULUS)

    @classmethod
    def of_missing(cls, applied: int, there: Collection[int]) -> Self:
        """Of the numbers up to ``applied`` all but those."""
        return cls(applied - len(there), (applied * (applied + 1) // 2 - sum(there)) % _MODULUS)


def recorded(totals: Mapping[str, Any] | None) -> Account:
    """Return the account that the totals' value holds; an empty one if there are no totals yet."""
    return Account() if totals is None else Account(*totals["gone"])


def there(numbers: Iterable[int], applied: int, totals: Mapping[str, Any] | None) -> set[int]:
    """The numbers that must not be gone: of those that have a file, all that were not given up by reclaim."""
    return {number for number in numbers if number <= applied} - set(() if totals is None else totals["folded"])


def difference(applied: int, numbers: Iterable[int], totals: Mapping[str, Any] | None) -> tuple[int, int | None] | None:
    """None if the account is right. Else how many files are missing (below 0: too many are there), and the number if
    it is one."""
    known = recorded(totals)
    actual = Account.of_missing(applied, there(numbers, applied, totals))
    if known == actual:
        return None
    many, total = actual.many - known.many, (actual.total - known.total) % _MODULUS
    number = {1: total, -1: -total % _MODULUS}.get(many)
    return many, number if number is not None and 0 < number <= applied else None
