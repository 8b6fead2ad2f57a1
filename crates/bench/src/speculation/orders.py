import csv
from dataclasses import dataclass, field


@dataclass
class Line:
    product: str
    quantity: int
    price: float

    def cost(self):
        return self.quantity * self.price


@dataclass
class Order:
    number: int
    customer: str
    lines: list = field(default_factory=list)

    def add(self, product, quantity, price):
        if quantity <= 0:
            raise ValueError("quantity must be positive")
        self.lines.append(Line(product, quantity, price))

    def total(self):
        return sum(line.cost() for line in self.lines)

    def products(self):
        return sorted({line.product for line in self.lines})


def load_orders(path):
    orders = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            number = int(row["number"])
            if number not in orders:
                orders[number] = Order(number, row["customer"])
            quantity = int(row["quantity"])
            price = float(row["price"])
            orders[number].add(row["product"], quantity, price)
    return list(orders.values())


def print_report(orders):
    for order in sorted(orders, key=lambda order: order.number):
        print(f"{order.number:>6} {order.customer:<20} {order.total():>10.2f}")
    print("total", sum(order.total() for order in orders))


if __name__ == "__main__":
    print_report(load_orders("orders.csv"))
