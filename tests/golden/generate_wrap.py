"""Makes wrap.jsonl: module trees, wrap settings, and the units that torch and fairscale made.

    python tests/golden/generate_wrap.py        (README.md beside this says in which environment)
"""

import random

import golden_file
import golden_libraries as libraries
import golden_rules as rules
import golden_vectors as vectors
from golden_trees import Described, TreeMaker

SOURCES = [
    "generate_wrap.py",
    "golden_file.py",
    "golden_libraries.py",
    "golden_models.py",
    "golden_rules.py",
    "golden_trees.py",
    "golden_vectors.py",
]

CLASS_SETS = [
    ["Linear"],
    ["Encoder", "LayerNorm"],
    ["ModuleList", "ModuleDict", "Sequential"],
    ["_BatchNorm", "Block"],
    ["FancyLinear"],
    [""],
]
LEAF_SETS = [
    ["MultiheadAttention", "Block"],
    ["Decoder"],
    ["Linear"],
    ["TiltedAttention", "ModuleList"],
    [""],
]
PRECISIONS = [
    {"param_dtype": "bf16"},
    {"param_dtype": "fp16", "reduce_dtype": "fp32"},
    {"reduce_dtype": "bf16"},
    {"param_dtype": "fp32"},
]


def threshold(rng, described):
    """Likely at the boundary of a decision, or one beside it."""
    numels = rules.subtree_numels(described.spec)
    pick = rng.choice(numels)
    if rng.random() < 0.3:
        pick = abs(pick - rng.choice(numels))
    if rng.random() < 0.1:
        return rng.choice([0, 1])
    return max(0, pick + rng.choice([-1, 0, 0, 0, 1]))


def size_wrap(rng, described):
    wrap = {"policy": "size", "min_params": threshold(rng, described)}
    if rng.random() < 0.3:
        wrap["exclude_classes"] = rng.choice(CLASS_SETS)
    if rng.random() < 0.3:
        wrap["force_leaf_classes"] = rng.choice(LEAF_SETS)
    return wrap


def class_wrap(rng, described):
    names = set()
    for node in described.modules.values():
        names.update([node["class_name"], *node.get("base_classes", [])])
    names = sorted(names & set(libraries.CLASSES))
    return {"policy": "class", "wrap_classes": sorted(rng.sample(names, min(len(names), 2)))}


def ignore(rng, root, described):
    """Some FQNs below the root, all of modules or all of parameters."""
    modules = [fqn for fqn in described.modules if fqn]
    parameters = list(described.parameter_fqn.values())
    pool = modules if modules and rng.random() < 0.6 else parameters
    picked = sorted(rng.sample(pool, min(len(pool), rng.randint(1, 2))))
    left = {p for p in parameters if p not in picked}
    left -= {p for p in left for m in picked if p.startswith(m + ".")}
    return picked if left else None


def annotate(rng, described, overrides):
    for fqn, node in described.modules.items():
        if fqn and rng.random() < 0.3:
            node["wrap"] = True
            if overrides and rng.random() < 0.5:
                node["wrap_config"] = rng.choice(
                    [
                        {"param_dtype": "bf16", "reduce_dtype": "fp32"},
                        {"param_dtype": "fp16", "reduce_dtype": "fp16"},
                        {"strategy": "shard_grad_op"},
                    ]
                )


class Family:
    """Random cases of one kind: `settings(rng, root, described)` gives the job's wrap part."""

    def __init__(self, name, count, settings, library="torch", details=False, twist=""):
        self.name, self.count, self.settings, self.library = name, count, settings, library
        self.details, self.twist = details, twist

    def cases(self):
        for i in range(self.count):
            yield self.case(random.Random(f"{self.name}-{i}"))

    def case(self, rng):
        maker = TreeMaker(rng)
        root = maker.make(max_modules=rng.randint(2, 14))
        twist = self.twist or self._twist(rng.random())
        if twist == "tie":
            maker.tie(root)
        elif twist == "share":
            maker.share(root, same_parent=rng.random() < 0.4)
        elif twist == "freeze":
            maker.freeze(root)
        elif twist == "mix":
            maker.mix_dtypes(root)
        described = Described(root)
        job = self.settings(rng, root, described)
        details = "mixed_precision" in job or self.details
        if self.library == "fairscale":
            theirs = libraries.run_fairscale(root, described, job)
        else:
            theirs = libraries.run_torch(root, described, job, details)
        return rules.decide({"kind": self.name, "library": self.library}, described, job, theirs)


    def _twist(self, share):
        if share < 0.2:
            return "tie"
        if share < 0.3:
            return "share"
        return "freeze" if share < 0.42 and self.library == "torch" else "none"


def torch_size(rng, root, described):
    wrap = size_wrap(rng, described)
    if rng.random() < 0.3 and (fqns := ignore(rng, root, described)):
        wrap["ignore"] = fqns
    return {"wrap": wrap}


def fairscale_size(rng, root, described):
    wrap = size_wrap(rng, described)
    wrap["root_unit"] = "by_policy"
    if rng.random() < 0.4:
        wrap["skip_root_check"] = True
    return {"wrap": wrap}


def torch_class(rng, root, described):
    wrap = class_wrap(rng, described)
    if rng.random() < 0.3 and (fqns := ignore(rng, root, described)):
        wrap["ignore"] = fqns
    return {"wrap": wrap}


def torch_always(rng, root, described):
    wrap = {"policy": "always"}
    if rng.random() < 0.4 and (fqns := ignore(rng, root, described)):
        wrap["ignore"] = fqns
    return {"wrap": wrap}


def torch_any_of(rng, root, described):
    return {"wrap": {"any_of": [size_wrap(rng, described), class_wrap(rng, described)]}}


def torch_none(rng, root, described):
    return {"wrap": {"policy": "none"}}


def torch_annotated(rng, root, described):
    annotate(rng, described, overrides=True)
    job = {"wrap": {"policy": "annotated"}}
    if rng.random() < 0.5:
        job["mixed_precision"] = {"param_dtype": "bf16", "ignored_classes": [""]}
    return job


def fairscale_annotated(rng, root, described):
    annotate(rng, described, overrides=False)
    if rng.random() < 0.3:
        described.modules[""]["wrap"] = True
    return {"wrap": {"policy": "annotated", "root_unit": "by_policy"}}


def torch_precision(rng, root, described):
    wrap = class_wrap(rng, described) if rng.random() < 0.5 else size_wrap(rng, described)
    precision = dict(rng.choice(PRECISIONS))
    if rng.random() < 0.3:
        precision["ignored_classes"] = rng.choice([[""], ["LayerNorm"], ["BatchNorm2d", "Block"]])
    return {"wrap": wrap, "mixed_precision": precision}


FAMILIES = [
    Family("size", 220, torch_size),
    Family("size_by_policy", 220, fairscale_size, library="fairscale"),
    Family("class", 60, torch_class),
    Family("always", 25, torch_always),
    Family("any_of", 50, torch_any_of),
    Family("none", 10, torch_none),
    Family("annotated", 40, torch_annotated, details=True),
    Family("annotated_by_policy", 30, fairscale_annotated, library="fairscale"),
    Family("precision", 70, torch_precision),
    Family("shared", 25, torch_size, twist="share"),
    Family("shared_by_policy", 25, fairscale_size, library="fairscale", twist="share"),
    Family("tied_by_policy", 15, fairscale_size, library="fairscale", twist="tie"),
    Family("mixed_dtypes", 25, torch_class, twist="mix"),
]


def main():
    libraries.start_ranks(world_size=2)
    cases = list(vectors.cases())
    for family in FAMILIES:
        cases += family.cases()
    golden_file.write("wrap.jsonl", SOURCES, libraries.VERSIONS, cases)
    rules.print_counts(cases)


if __name__ == "__main__":
    main()
