"""Whose turn it is among those who share an engine.

Counters of tokens served, as in "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024): the tenant that
has been served least goes first, and one that comes back starts at the least of those present, so that nobody saves up
claims while away.
"""

from __future__ import annotations

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # an output token takes longer than one of a prompt, which comes in bulk

Tenant = str | None


class TenantShares:
    """A tenant is present while it has a waiting or running request."""

    def __init__(self) -> None:
        self._served: dict[Tenant, float] = {}
        self._present: dict[Tenant, int] = {}

    @property
    def several(self) -> bool:
        """With a single tenant there is nothing to share, and nothing needs to be counted."""
        return len(self._present) > 1

    def served(self, tenant: Tenant) -> float:
        """Weighted tokens; only differences between tenants that are present mean anything."""
        return self._served.get(tenant, 0.0)

    def enter(self, tenant: Tenant) -> None:
        """A request of the tenant has come."""
        if tenant not in self._present:
            if not self._present:
                self._served.clear()
            least = min((self.served(each) for each in self._present), default=0.0)
            self._served[tenant] = max(self.served(tenant), least)
        self._present[tenant] = self._present.get(tenant, 0) + 1

    def leave(self, tenant: Tenant) -> None:
        """A request of the tenant has ended."""
        self._present[tenant] -= 1
        if self._present[tenant] == 0:
            del self._present[tenant]
            self._forget_the_even()

    def charge_prompt(self, tenant: Tenant, num_tokens: int) -> None:
        self._charge(tenant, PROMPT_WEIGHT * num_tokens)

    def charge_output(self, tenant: Tenant, num_tokens: int) -> None:
        self._charge(tenant, OUTPUT_WEIGHT * num_tokens)

    def _charge(self, tenant: Tenant, weight: float) -> None:
        if self.several:
            self._served[tenant] = self.served(tenant) + weight

    def _forget_the_even(self) -> None:
        """Who is away and was served no more than anybody present would come back to the same count anyway."""
        least = min((self.served(each) for each in self._present), default=None)
        for tenant in [each for each in self._served if each not in self._present]:
            if least is None or self._served[tenant] <= least:
                del self._served[tenant]
