"""Put the plugins on a node, bring a newer release, take everything off again.

    layout.py   what each component wants on a node          (pure)
    runtimes.py what a container runtime needs for NRI       (pure)
    plan.py     from what is wanted and what is there: steps (pure)
    steps.py    the steps, each with its undo
    record.py   what an installation remembers of itself (pure)
    node.py     observe and do: the only effects, with tree.py
    proof.py    after taking off: look at the node again
    cli.py      the commands ``install``, ``upgrade``, ``uninstall``

On the node, a release lies whole in ``/opt/ub-node/<version>/`` and ``/opt/ub-node/current`` points to it; nothing is
ever overwritten, so a program that runs keeps its files, and a swap of one link is the whole upgrade.
"""
