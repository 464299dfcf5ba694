"""What Tessera decided otherwise than the libraries, worked out from the tree and their answer."""

import collections

_DTYPE_ENUM = {"fp32": "FLOAT32", "fp16": "FLOAT16", "bf16": "BFLOAT16"}


class Index:
    """Modules and parameters of a ModelSpec in JSON, with who uses what."""

    def __init__(self, spec):
        self.fqns, self.nodes, self.parents, self.ends = [], [], [], []
        self.target = {}  # alias -> the module that it is
        self.owner = {}  # FQN of a parameter that holds storage -> its module
        self.numel, self.dtype = {}, {}  # of storages
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
            self.dtype[storage] = parameter["dtype"]
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


# Tessera's policies, in so many words. Nothing here looks at what a library did.


def _matches(node, names):
    return bool({node["class_name"], *node.get("base_classes", [])} & {n for n in names if n})


def _asks(wrap, node, num, remainder, is_root):
    """(descend into the module?, is it a unit?) of one policy. remainder: None when not asked."""
    if "any_of" in wrap:
        answers = [_asks(w, node, num, remainder, is_root) for w in wrap["any_of"]]
        return any(a for a, _ in answers), any(b for _, b in answers)
    policy = wrap["policy"]
    if policy != "size":
        unit = {
            "class": lambda: _matches(node, wrap["wrap_classes"]),
            "always": lambda: True,
            "none": lambda: False,
            "annotated": lambda: node.get("wrap", False),
        }[policy]()
        return policy != "none", unit
    minimum = wrap.get("min_params", 100_000_000)
    exclude = wrap.get("exclude_classes", ["ModuleList", "ModuleDict"])
    leaves = wrap.get("force_leaf_classes", ["MultiheadAttention"])
    large = remainder is not None and remainder >= minimum
    if is_root and wrap.get("skip_root_check", False):
        large = True
    descend = num >= minimum and not _matches(node, leaves)
    return descend, large and not _matches(node, exclude)


class Planner:
    """Which modules are units, and which parameters each has, by Tessera's decisions."""

    def __init__(self, spec, job):
        self.index = Index(spec)
        self.wrap = job["wrap"]
        self.always_root = self.wrap.get("root_unit", "always") == "always"
        self.job = job
        self.norms, self.full_precision = [], set()
        precision = job.get("mixed_precision", {})
        stated = {precision.get("param_dtype", "fp32"), precision.get("reduce_dtype", "fp32")}
        if stated != {"fp32"} and "none" != self.wrap.get("policy"):
            self.norms = precision.get("ignored_classes", ["_BatchNorm"])
        self.negative = False
        self._find_ignored()
        self.units, self.reports = [], {}
        self._visit(0)

    def _find_ignored(self):
        index = self.index
        fqns = self.wrap.get("ignore", [])
        self.ignored_modules = {
            m
            for m in range(len(index.fqns))
            if any(index.encloses(index.fqns.index(f), m) for f in fqns if f in index.fqns)
        }
        self.ignored = {s for s in index.owner if s in fqns}
        for module in self.ignored_modules:
            self.ignored |= index.storages_below(module)

    def _visit(self, module, asked=True):
        """Makes units of what is to be one; returns the numel that they report.

        asked: every module around this one let the policy through.
        """
        index = self.index
        node = index.nodes[module]
        storages = index.storages_below(module) - self.ignored
        num = sum(index.numel[s] for s in storages)
        descend = asked and _asks(self.wrap, node, num, None, module == 0)[0]
        reported, beside = 0, set()
        child = module + 1
        while child < index.ends[module]:
            if child in index.target:
                # It reports again what its object reports, unless both are children of one module.
                target = index.target[child]
                if index.parents[target] != module and target not in beside:
                    reported += self.reports.get(target, 0)
                beside.add(target)
            elif child not in self.ignored_modules:
                reported += self._visit(child, descend)
            child = index.ends[child]
        remainder = num - reported
        unit = descend and _asks(self.wrap, node, num, remainder, module == 0)[1]
        if _matches(node, self.norms):
            self.full_precision.add(module)
            unit = True
        unit = unit or (module == 0 and self.always_root)
        self.negative = self.negative or (descend and not unit and remainder < 0)
        if unit:
            self.units.append(module)
        self.reports[module] = num if unit else reported
        return self.reports[module]

    def _nearest(self):
        nearest = {}
        for module in range(len(self.index.fqns)):
            parent = self.index.parents[module]
            nearest[module] = module if module in self.units else nearest.get(parent)
        return nearest

    def _covers(self, unit, use):
        index = self.index
        _, module, object_ = use
        if index.encloses(unit, module):
            return True
        target = index.target.get(module)
        return target is not None and (
            index.encloses(target, unit) or index.encloses(object_, unit)
        )

    def outcome(self):
        """The plan in the golden files' form, and the FQNs of what units share."""
        index, nearest = self.index, self._nearest()
        held, orphans, shared = {unit: [] for unit in self.units}, [], []
        ties = {}
        for storage in index.order:
            if storage in self.ignored:
                continue
            uses = index.uses[storage]
            unit = nearest[index.owner[storage]]
            if any(nearest[module] != unit for _, module, _ in uses):
                shared.append(storage)
            while unit is not None and not all(self._covers(unit, use) for use in uses):
                unit = nearest.get(index.parents[unit])
            if unit is None:
                orphans.append(storage)
                continue
            held[unit].append(storage)
            if uses:
                ties[storage] = [fqn for fqn, _, _ in uses]
        if any(len({index.dtype[s] for s in storages}) > 1 for storages in held.values()):
            return {"refused": "give them one dtype"}, shared
        result = {"units": [[index.fqns[unit], held[unit]] for unit in self.units]}
        if ties:
            result["ties"] = ties
        if orphans:
            result["orphans"] = orphans
        if self.ignored:
            result["ignored"] = sorted(self.ignored)
        settings = [self._settings(unit) for unit in self.units]
        result["dtypes"] = [s[0] if held[unit] else None for s, unit in zip(settings, self.units)]
        result["strategies"] = [s[1] for s in settings]
        return result, shared

    def _settings(self, unit):
        """([compute, reduce], strategy) of a unit of a float32 model."""
        node, fqn = self.index.nodes[unit], self.index.fqns[unit]
        settings = {**self.job.get("mixed_precision", {}), **self.job.get("mesh", {})}
        settings.update(node.get("wrap_config", {}))
        for override in self.wrap.get("overrides", []):
            if override["fqn"] == fqn:
                settings.update(override["config"])
        compute = settings.get("param_dtype", "fp32")
        reduce = settings.get("reduce_dtype", compute)
        if unit in self.full_precision:
            compute = reduce = "fp32"
        strategy = settings.get("strategy", "full_shard").upper()
        return [_DTYPE_ENUM[compute], _DTYPE_ENUM[reduce]], strategy


def _same(one, other):
    def canonical(outcome):
        return (
            outcome["units"],
            {key: sorted(value) for key, value in outcome.get("ties", {}).items()},
            sorted(outcome.get("orphans", [])),
            outcome.get("ignored", []),
        )

    # Theirs says these where they are asked for, and no dtypes of a unit that holds nothing.
    for key in {"dtypes", "strategies"} & other.keys():
        if one[key] != other[key]:
            return False
    return canonical(one) == canonical(other)


def _fqns(outcome):
    return [unit[0] for unit in outcome["units"]]


def _reasons(planner, ours, shared, theirs):
    """Names of the decisions that explain why ours is not theirs."""
    if "error" in theirs:
        for text, name in [
            ("modules to not already have FSDP applied", "already_wrapped"),
            ("found unsharded parameter", "tie_within_a_module"),
            ("Child module FullyShardedDataParallel", "shared_module"),
            ("AssertionError: ", "shared_module"),
        ]:
            if text in theirs["error"]:
                return [name]
        return []
    names = []
    if _fqns(ours) != _fqns(theirs):
        if "mixed_precision" in planner.job:
            name = "norms_keep_the_gate" if planner.norms else "norms_only_in_mixed_precision"
            names.append(name)
        elif planner.index.target:
            names.append("shared_module")
        else:
            return []
    if 0 in planner.full_precision:
        names.append("norm_root_full_precision")
    if shared:
        names.append("tie_across_units")
    if not names and planner.index.target:
        names.append("alias_name")
    return names


def decide(case, described, job, theirs):
    """Adds to `case` what theirs and, where that differs, ours is, and why."""
    planner = Planner(described.spec, job)
    ours, shared = planner.outcome()
    refused = "refused" in ours
    if not refused and not any(unit[1] for unit in ours["units"]) and "orphans" not in ours:
        # FSDP makes units that hold nothing at all.
        case["decided"] = ["nothing_left_refused"]
        ours, refused = {"refused": "wrap.ignore: leaves no parameter"}, True
    if not refused and "dtypes" not in theirs:
        del ours["dtypes"], ours["strategies"]
    if refused:
        if "decided" not in case and "Must flatten tensors with uniform dtype" not in str(theirs):
            raise AssertionError(f"{case}: {job}: ours refuses\ntheirs {theirs}"[:4000])
        case["ours"] = ours
    elif "error" in theirs or not _same(ours, theirs):
        case["decided"] = _reasons(planner, ours, shared, theirs)
        if not case["decided"]:
            raise AssertionError(f"{case}: {job}\nours {ours}\ntheirs {theirs}"[:4000])
        case["ours"] = ours
    if planner.negative:
        case["negative_remainder"] = True
    case["model"] = described.spec
    case["job"] = job
    case["theirs"] = theirs
    return case


def print_counts(cases):
    counts = collections.Counter()
    for case in cases:
        counts.update([case["kind"], *(f"decided {d}" for d in case.get("decided", []))])
        if case.get("negative_remainder"):
            counts["(negative remainder)"] += 1
    for kind, count in sorted(counts.items()):
        print(f"  {kind}: {count}")
