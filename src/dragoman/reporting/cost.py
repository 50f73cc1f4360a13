"""Machine-hours, their cost and their energy, and question 12.

Each life counts at the price of its own machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts, Gpu, Life, MachineUse
from dragoman.reporting.record import summed
from dragoman.reporting.verdict import Evidence, Judgement, evidence
from dragoman.telemetry.host import HourlyPrice
from dragoman.training.clock import Budget


def cost_evidence(facts: Facts) -> Iterator[Evidence]:
    """Machines, their time and their price."""
    hours, last = machine_hours(facts), facts.lives[-1] if facts.lives else None
    yield evidence("machines", units.COUNT, last.machines if last else None)
    if hours is not None:
        yield Evidence("machine time", hours, _machine_time(hours * units.HOUR_S))
    if facts.price is not None:
        text = units.money(facts.price.amount, currency=facts.price.currency)
        yield Evidence("price of a machine-hour", facts.price.amount, text)
    elif last is not None and (price := price_per_hour(facts, last)) is not None:
        text = units.money(price.amount, currency=price.currency)
        yield Evidence("price of all machines an hour", price.amount, text)
    yield from energy_evidence(facts)
    if facts.budget is not None and facts.budget.finished is not None:
        yield from _whole_budget(facts.budget, facts.budget.finished)


def _whole_budget(budget: Budget, finished: float) -> Iterator[Evidence]:
    """Time and money from the first command to the export: more than the training took."""
    used_s, amount = finished - budget.started, budget.cost(until=finished)
    yield evidence("with preparation, restarts, scores and export", units.DURATION, used_s)
    if amount is not None:
        yield Evidence("its cost", amount, units.money(amount, currency=budget.currency))


def cost(facts: Facts) -> Judgement:
    """What did it cost, in money and in energy?"""
    answer, says, remedy = _money(facts)
    energy = energy_text(facts)
    return answer, f"{says} It took {energy}." if energy else says, remedy


def _money(facts: Facts) -> Judgement:
    """The cost as far as it is known, and the remedy if something is missing."""
    if not facts.lives:
        return "cannot tell", "Nothing was timed.", ""
    paid, hours = paid_text(facts), machine_hours(facts)
    if is_priced(facts):
        says = f"{paid} for machines whose number is not known"
        if hours is not None:
            says = f"{_machine_time(hours * units.HOUR_S)} of machine time, {paid}"
        if (left_s := measures.left_s(facts)) is None:
            return "measured", f"{says}.", ""
        says += f" so far; {spent_text(facts, more_s=left_s)} when it is done."
        return "measured", says, ""
    if hours is None:
        says = "The number of machines is not known: a start does not name the host of each rank."
        says += f" The machines with a known price cost {paid}." if paid else ""
        return "cannot tell", says, "Bring the whole log of the run."
    if not paid:
        says = f"{_machine_time(hours * units.HOUR_S)} of machine time; no price given."
        how = "Set price to that of a machine for an hour, such as '3.06 USD', or price_per_hour "
        how += "in hosts.toml."
        return "cannot tell", says, how
    with_price, without = _spans(facts, priced=True), _spans(facts, priced=False)
    says = f"{with_price} cost {paid}; no price in {currency_of(facts)} is known for {without}."
    how = "Give one price of a machine for an hour, such as '3.06 USD', for all of the run."
    return "cannot tell", says, how


def _spans(facts: Facts, *, priced: bool) -> str:
    """The machine time of lives with a price, or of those without, and their hosts."""
    lives = [life for life in facts.lives if (price_per_hour(facts, life) is not None) is priced]
    spent_s = sum(lived_s(life) * (life.machines or 0) for life in lives)
    hosts = sorted({host for life in lives for host in life.hosts})
    return f"{_machine_time(spent_s)} of machine time on {', '.join(hosts)}"


def _machine_time(seconds_s: float) -> str:
    """Machine-hours; less than one hour in minutes and seconds."""
    return (units.HOURS if seconds_s >= units.HOUR_S else units.DURATION).text(seconds_s)


def lived_s(life: Life, until: float | None = None) -> float:
    """Seconds from the start of a life to its end, or to `until` if that is earlier."""
    ended = life.ended if until is None else min(life.ended, until)
    return max(ended - life.started, 0.0)


def machine_hours(facts: Facts, *, until: float | None = None) -> float | None:
    """Hours of all machines together, from each start to each end; None if nothing was timed.

    None also if it is not known how many machines took part: see `Life.machines`.
    until: the moment at which to stop counting.
    """
    if not facts.lives:
        return None
    spent_s = 0.0
    for life in facts.lives:
        machines = life.machines
        if machines is None:
            return None
        spent_s += lived_s(life, until) * machines
    return spent_s / units.HOUR_S


def price_per_hour(facts: Facts, life: Life) -> HourlyPrice | None:
    """The price of all machines of one life together; None if it is not known.

    A given price counts for each machine; otherwise the life's own record counts. A price in
    another currency than that of the newest life counts as not known.
    """
    price = _recorded_price(facts, life)
    return price if price is not None and price.currency == currency_of(facts) else None


def currency_of(facts: Facts) -> str | None:
    """The currency of the newest life that has a price; None if none has one."""
    prices = (_recorded_price(facts, life) for life in reversed(facts.lives))
    return next((price.currency for price in prices if price is not None), None)


def _recorded_price(facts: Facts, life: Life) -> HourlyPrice | None:
    if facts.price is None:
        return life.price
    machines = life.machines
    return replace(facts.price, amount=machines * facts.price.amount) if machines else None


def is_priced(facts: Facts) -> bool:
    """Whether there is a life, and the price of every life is known."""
    are_priced = [price_per_hour(facts, life) is not None for life in facts.lives]
    return bool(are_priced) and all(are_priced)


def spent(facts: Facts, *, until: float | None = None, more_s: float = 0.0) -> float:
    """The cost of the lives that have a price, in `currency_of`.

    until: the moment at which to stop counting.
    more_s: seconds for which the last life will go on.
    """
    amount = 0.0
    for life in facts.lives:
        price = price_per_hour(facts, life)
        if price is not None:
            seconds_s = lived_s(life, until) + (more_s if life is facts.lives[-1] else 0.0)
            amount += seconds_s / units.HOUR_S * price.amount
    return amount


def paid_text(facts: Facts, *, more_s: float = 0.0) -> str:
    """`spent` in words; "" if no life has a price."""
    currency = currency_of(facts)
    return "" if currency is None else units.money(spent(facts, more_s=more_s), currency=currency)


def spent_text(facts: Facts, *, more_s: float = 0.0) -> str:
    """`paid_text`; "" if the price of a life is not known."""
    return paid_text(facts, more_s=more_s) if is_priced(facts) else ""


def energy_text(facts: Facts) -> str:
    """The energy in words, with what used it and what was not measured; "" if nothing was."""
    gpus, processors = _energies_j(facts)
    energy_j = summed([*gpus, *processors])
    if energy_j is None:
        return ""
    where = _sampled_hosts(facts)
    parts = (
        _measured(gpus, f"GPUs{where}", f"{{}} GPUs{where}"),
        _measured(processors, "processors", "the processors of {} hosts"),
    )
    text = f"{units.ENERGY.text(energy_j)} by {' and '.join(filter(None, parts))}"
    if not all(measures.is_sampled_throughout(facts, one) for one in _with_energy(facts)):
        text += ", in the part of the run that was sampled"
    without = [name for name, part in zip(("GPUs", "processors"), parts, strict=True) if not part]
    if "GPUs" in without and not gpus:
        without.remove("GPUs")
    return f"{text}; that of {without[0]} was not measured" if without else text


def energy_evidence(facts: Facts) -> Iterator[Evidence]:
    """The energy of GPUs, if there are any, and of processors."""
    gpus, processors = _energies_j(facts)
    if gpus:
        yield evidence("energy of GPUs", units.ENERGY, summed(gpus), _sampled_hosts(facts))
    yield evidence("energy of processors, all programs", units.ENERGY, summed(processors))


def _sampled_hosts(facts: Facts) -> str:
    """How many hosts have told of their GPUs; "" if all have."""
    seen, hosts = {gpu.host for gpu in facts.gpus}, set(facts.hosts)
    return "" if seen >= hosts else f" of {len(seen & hosts)} of {len(hosts)} hosts"


def _energies_j(facts: Facts) -> tuple[list[float | None], list[float | None]]:
    """The energy of each GPU, and of the processors of each host."""
    processors = {machine.host: machine.processor_energy_j for machine in facts.machines}
    return (
        [gpu.energy_j for gpu in facts.gpus],
        list((dict.fromkeys(facts.hosts) | processors).values()),
    )


def _with_energy(facts: Facts) -> Iterator[Gpu | MachineUse]:
    """What told its energy."""
    yield from (gpu for gpu in facts.gpus if gpu.energy_j is not None)
    yield from (one for one in facts.machines if one.processor_energy_j is not None)


def _measured(energies_j: Sequence[float | None], name: str, part: str) -> str:
    """What told its energy: all, "", or a part."""
    count = sum(energy_j is not None for energy_j in energies_j)
    if count in (0, len(energies_j)):
        return name if count else ""
    return part.format(f"{count} of {len(energies_j)}")
