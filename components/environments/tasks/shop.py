"""An invented shop -> a SQLite file of four tables, and questions with the SQL that answers them."""

import datetime
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

TOWNS = ("Belhaven", "Corwick", "Drastead", "Fendale", "Galmora", "Holburg")
CATEGORIES = ("lamps", "chairs", "clocks", "carpets", "kettles")
STATUSES = ("open", "sent", "returned")
_FIRST = ("Ada", "Bruno", "Clara", "Dario", "Edda", "Falk", "Greta", "Hugo", "Ines", "Jonas")
_FAMILY = ("Adin", "Belkov", "Corlander", "Dramund", "Felris", "Galtann", "Holvik", "Istzer")
_STYLES = ("oak", "brass", "blue", "small", "folding", "royal", "plain", "winter")
SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, town TEXT, since INTEGER);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price REAL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers(id), day TEXT, status TEXT);
CREATE TABLE order_items (order_id INTEGER REFERENCES orders(id), product_id INTEGER REFERENCES products(id),
                          quantity INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and a query that answers it. The order of its rows matters where it says ORDER BY."""

    question: str
    sql: str


def write_shop(path: Path, seed: int = 0) -> None:
    """Write the database, always the same for a seed: 80 customers, 40 products, 300 orders of 1 to 4 items."""
    rng = random.Random(seed)
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.executescript(SCHEMA)
        shop.executemany(
            "INSERT INTO customers VALUES (?, ?, ?, ?)",
            [(i, name, rng.choice(TOWNS), rng.randint(2010, 2024)) for i, name in enumerate(customer_names(), start=1)],
        )
        prices = rng.sample(range(500, 30_000), len(product_names()))
        shop.executemany(
            "INSERT INTO products VALUES (?, ?, ?, ?)",
            [(i, f"{style} {kind}", kind, prices[i - 1] / 100) for i, (style, kind) in enumerate(product_names(), 1)],
        )
        first = datetime.date(2025, 1, 1)
        for number in range(1, 301):
            day = first + datetime.timedelta(days=rng.randrange(365))
            order = (number, rng.randint(1, 80), day.isoformat(), rng.choice(STATUSES))
            shop.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", order)
            items = [(number, product, rng.randint(1, 5)) for product in rng.sample(range(1, 41), rng.randint(1, 4))]
            shop.executemany("INSERT INTO order_items VALUES (?, ?, ?)", items)


def customer_names() -> list[str]:
    """The 80 customers, by id from 1."""
    return [f"{first} {family}" for first in _FIRST for family in _FAMILY]


def product_names() -> list[tuple[str, str]]:
    """Style and category of the 40 products, by id from 1."""
    return [(style, kind) for style in _STYLES for kind in CATEGORIES]


def asked() -> Iterator[Asked]:
    """All questions: counts, sums, averages, joins, groups, extremes, and lists in a given order."""
    yield from _of_towns_and_categories()
    for style, kind in product_names():
        name = f"{style} {kind}"
        joined = f"FROM order_items JOIN products ON products.id = product_id WHERE products.name = '{name}'"
        yield Asked(f"How many pieces of {name} were ordered in all?", f"SELECT SUM(quantity) {joined}")
        yield Asked(f"In how many orders are there {name}?", f"SELECT COUNT(DISTINCT order_id) {joined}")
    for name in customer_names():
        mine = f"JOIN customers ON customers.id = customer_id WHERE customers.name = '{name}'"
        yield Asked(f"How many orders has {name} placed?", f"SELECT COUNT(*) FROM orders {mine}")
        spent = "SELECT SUM(quantity * price) FROM order_items JOIN products ON products.id = product_id"
        yield Asked(f"What is the total price of everything that {name} has ordered?",
                    f"{spent} JOIN orders ON orders.id = order_id {mine}")  # fmt: skip
    for month in range(1, 13):
        when = f"day LIKE '2025-{month:02d}-%'"
        for status in STATUSES:
            yield Asked(f"How many orders of month {month} of 2025 have the status {status}?",
                        f"SELECT COUNT(*) FROM orders WHERE {when} AND status = '{status}'")  # fmt: skip
        yield Asked(f"Which customers, by name, have ordered something in month {month} of 2025? Sort them by name.",
                    f"SELECT DISTINCT name FROM customers JOIN orders ON customers.id = customer_id WHERE {when} "
                    "ORDER BY name")  # fmt: skip


def _of_towns_and_categories() -> Iterator[Asked]:
    for town in TOWNS:
        yield Asked(f"How many customers live in {town}?", f"SELECT COUNT(*) FROM customers WHERE town = '{town}'")
        yield Asked(f"Which customers live in {town}?", f"SELECT name FROM customers WHERE town = '{town}'")
        orders = f"FROM orders JOIN customers ON customers.id = customer_id WHERE town = '{town}'"
        yield Asked(f"How many orders come from {town}?", f"SELECT COUNT(*) {orders}")
        for kind in CATEGORIES:
            pieces = (
                "SELECT SUM(quantity) FROM order_items JOIN products ON products.id = product_id JOIN orders ON "
                "orders.id = order_id JOIN customers ON customers.id = customer_id"
            )
            yield Asked(f"How many {kind} have customers from {town} ordered, counted in pieces?",
                        f"{pieces} WHERE town = '{town}' AND category = '{kind}'")  # fmt: skip
    for kind in CATEGORIES:
        of = f"FROM products WHERE category = '{kind}'"
        yield Asked(f"What is the average price of {kind}?", f"SELECT AVG(price) {of}")
        yield Asked(f"What is the name of the most expensive product among the {kind}?",
                    f"SELECT name {of} ORDER BY price DESC LIMIT 1")  # fmt: skip
        yield Asked(f"List the names of all {kind}, the cheapest first.", f"SELECT name {of} ORDER BY price")
