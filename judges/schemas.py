"""Random JSON schemas, each of which some value satisfies.

A small model can finish them within a hundred tokens: strings are short, arrays and objects small,
and nesting shallow.
"""

import random

SEED = 9
NAMES = ["id", "name", "unit price", "tags", "größe", 'quo"ted', "a/b", "next", "Ω", "items", "x"]
WORDS = ["red", "green", "blue", "", "two words", 'say "hi"', "back\\slash", "日本", "line\nbreak"]
PATTERNS = [
    "^[a-z]{2,8}$",
    "^[A-Z][a-z]{1,6}( [A-Z][a-z]{1,6})?$",
    "^\\d{3}-\\d{4}$",
    "^(yes|no|maybe)$",
    "^#[0-9a-fA-F]{6}$",
    "^v\\d+\\.\\d{1,2}$",
    "^[^\\s\"]{1,5}$",
    "[0-9]{2}$",
]
FORMATS = ["uuid", "ipv4", "ipv6", "date", "time", "date-time", "email"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def document(self):
        """A whole schema: mostly an object, sometimes any other kind."""
        self.definitions = {}
        kind = self.object if self.random.random() < 0.75 else self.any
        schema = kind(depth=2)
        if self.definitions:
            schema["$defs"] = self.definitions
        return schema

    def any(self, depth):
        leaves = [self.string, self.integer, self.number, self.choice, self.literal, self.simple]
        nested = [self.object, self.array, self.tuple, self.union, self.nullable, self.reference]
        kinds = leaves if depth <= 0 else leaves + 2 * nested
        return self.random.choice(kinds)(depth)

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(1, 4))
        schema = {
            "type": "object",
            "properties": {name: self.any(depth - 1) for name in names},
            "required": [name for name in names if self.random.random() < 0.7],
        }
        match self.random.randrange(4):
            case 0:
                schema["additionalProperties"] = self.any(0)
            case 1 | 2:
                schema["additionalProperties"] = False
        return schema

    def array(self, depth):
        low = self.random.randint(0, 2)
        schema = {"type": "array", "items": self.any(depth - 1)}
        if self.random.random() < 0.8:
            schema["maxItems"] = low + self.random.randint(0, 2)
        if low:
            schema["minItems"] = low
        return schema

    def tuple(self, depth):
        items = [self.any(depth - 1) for _ in range(self.random.randint(1, 3))]
        rest = self.random.choice([False, self.any(0)])
        schema = {"type": "array", "prefixItems": items, "items": rest}
        if self.random.random() < 0.7:
            schema["minItems"] = len(items)
        if rest is not False:
            schema["maxItems"] = len(items) + 1
        return schema

    def union(self, depth):
        """Types that have no value in common, so that `oneOf` and `anyOf` mean the same."""
        kinds = [self.string, self.integer, self.object, self.array, self.boolean, self.null]
        chosen = self.random.sample(kinds, self.random.randint(2, 3))
        keyword = self.random.choice(["anyOf", "oneOf"])
        return {keyword: [kind(depth - 1) for kind in chosen]}

    def nullable(self, depth):
        """One of the two ways to allow null."""
        if self.random.random() < 0.5:
            return {"anyOf": [self.any(depth - 1), self.null(depth)]}
        schema = self.random.choice([self.string, self.integer, self.number])(depth)
        return schema | {"type": [schema["type"], "null"]}

    def reference(self, depth):
        name = f"def{len(self.definitions)}"
        if self.random.random() < 0.3:
            self.definitions[name] = self.recursive(name)
        else:
            # Reserves the name before the definition adds others.
            self.definitions[name] = True
            self.definitions[name] = self.any(depth - 1)
        return {"$ref": f"#/$defs/{name}"}

    def recursive(self, name):
        own = {"$ref": f"#/$defs/{name}"}
        deeper = self.random.choice([own, {"type": "array", "items": own, "maxItems": 1}])
        return {
            "type": "object",
            "properties": {"value": self.any(0), "next": deeper},
            "required": ["value"],
            "additionalProperties": False,
        }

    def string(self, _depth):
        schema = {"type": "string"}
        match self.random.randrange(4):
            case 0:
                schema["pattern"] = self.random.choice(PATTERNS)
            case 1:
                schema["format"] = self.random.choice(FORMATS)
            case 2:
                low = self.random.randint(0, 5)
                schema |= {"minLength": low, "maxLength": low + self.random.randint(0, 12)}
            case 3:
                schema["maxLength"] = self.random.randint(1, 20)
        return schema

    def integer(self, _depth):
        return {"type": "integer"} | self.bounds(lambda low, high: self.random.randint(low, high))

    def number(self, _depth):
        def draw(low, high):
            return round(self.random.uniform(low, high), self.random.randint(0, 3))

        return {"type": "number"} | self.bounds(draw)

    def bounds(self, draw):
        """Limits, at least one multiple apart if `multipleOf` is set."""
        reach = 10 ** self.random.randint(1, 6)
        low = draw(-reach, reach)
        schema = {}
        match self.random.randrange(5):
            case 0:
                schema = {"minimum": low, "maximum": low + draw(0, reach)}
            case 1:
                schema = {"exclusiveMinimum": low, "exclusiveMaximum": low + 2 + draw(0, reach)}
            case 2:
                schema = {"minimum": low}
            case 3:
                schema = {"exclusiveMaximum": low}
            case 4:
                step = self.random.choice([2, 3, 5, 7, 10])
                schema = {"multipleOf": step, "minimum": 0, "maximum": 100 * step}
        return schema

    def choice(self, _depth):
        values = self.random.sample(WORDS + [0, -7, 2.5, True, None], self.random.randint(1, 5))
        return {"enum": values}

    def literal(self, _depth):
        values = [*WORDS, 42, -1.5, False, None, [1, "a"], {"k": [None]}]
        return {"const": self.random.choice(values)}

    def simple(self, depth):
        return self.random.choice([self.boolean, self.null])(depth)

    def boolean(self, _depth):
        return {"type": "boolean"}

    def null(self, _depth):
        return {"type": "null"}


def generate(count):
    """The same schemas every time."""
    generator = Generator(SEED)
    return [generator.document() for _ in range(count)]
