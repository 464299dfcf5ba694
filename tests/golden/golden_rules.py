"""What Tessera decided otherwise than the libraries, worked out from the tree and their answer."""

import collections


class Index:
    """Modules and parameters of a ModelSpec in JSON, with who uses what."""

    def __init__(self, spec):
        self.fqns, self.nodes, self.parents, self.ends = [], [], [], []
        self.target = {}  # alias -> the module that it is
        self.owner = {}  # FQN of a parameter that holds storage -> its module
        self.numel = {}
        self.order = []  # of the keys of owner
        self.uses = collections.defaultdict(list)  # storage -> [(FQN, module, object)]
        self._own = collections.defaultdict(list)  # module -> [(name, storage)]
        self._ties = []
        self._walk(spec["root"], "", -1)
        for module, name, storage in self._ties:
            self._own[module].append((name, storage))
            self.uses[storage].append((self._join(module, name), module, module))
        for alias, target in sorted(self.target.items()):
            self._alias(alias, target, target, self.fqns[alias])

    def _join(self, module, name):
        return f"{self.fqns[module]}.{name}" if self.fqns[module] else name

    def _walk(self, node, fqn, parent):
        self_ = len(self.fqns)
        self.fqns.append(fqn)
        self.nodes.append(node)
        self.parents.append(parent)
        self.ends.append(0)
        if "same_as" in node:
            self.target[self_] = self.fqns.index(node["same_as"])
        for parameter in node.get("parameters", []):
            if "tied_to" in parameter:
                self._ties.append((self_, parameter["name"], parameter["tied_to"]))
                continue
            storage = self._join(self_, parameter["name"])
            self.owner[storage] = self_
            self.order.append(storage)
            self._own[self_].append((parameter["name"], storage))
            numel = 1
            for extent in parameter["shape"]:
                numel *= extent
            self.numel[storage] = numel
        for child in node.get("children", []):
            self._walk(child, self._join(self_, child["name"]), self_)
        self.ends[self_] = len(self.fqns)

    def _alias(self, alias, object_, target, fqn):
        if target in self.target:
            self._alias(alias, self.target[target], self.target[target], fqn)
            return
        for name, storage in self._own[target]:
            self.uses[storage].append((f"{fqn}.{name}", alias, object_))
        child = target + 1
        while child < self.ends[target]:
            self._alias(alias, object_, child, f"{fqn}.{self.nodes[child]['name']}")
            child = self.ends[child]

    def encloses(self, outer, inner):
        return outer <= inner < self.ends[outer]

    def storages_below(self, module):
        """Of the subtree, each once, shared ones included."""
        found = {s for s, owner in self.owner.items() if self.encloses(module, owner)}
        for storage, uses in self.uses.items():
            if any(self.encloses(module, at) for _, at, _ in uses):
                found.add(storage)
        return found


def subtree_numels(spec):
    index = Index(spec)
    return [
        sum(index.numel[s] for s in index.storages_below(module))
        for module in range(len(index.fqns))
        if module not in index.target
    ]


def decide(case, described, job, theirs, decided=None):
    case["model"] = described.spec
    case["job"] = job
    case["theirs"] = theirs
    return case


def print_counts(cases):
    counts = collections.Counter()
    for case in cases:
        counts[case["kind"]] += 1
        if "error" in case["theirs"]:
            counts["error " + case["theirs"]["error"][:60]] += 1
    for kind, count in sorted(counts.items()):
        print(f"  {kind}: {count}")
