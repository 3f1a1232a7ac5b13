"""What other packages add to treering: engines, importers, adapters and providers of sandboxes.

An installed package names each in an entry point of its own ``pyproject.toml``:

    [project.entry-points."treering.engines"]
    redis = "my_package:open_redis"

=============================  ======================================  ===================================
group                          the entry point is named after          and leads to
=============================  ======================================  ===================================
``treering.engines``           the scheme of a store's URL             a function of ``(url, *, durability,
                                                                       blobs, clock)`` that returns an
                                                                       `Engine`
``treering.importers``         the importer, as in ``treering import`` a function of ``(source, store, *,
                                                                       on_progress, dry_run, strict)``
                                                                       that returns an `ImportReport`
``treering.adapters``          the framework, for `find_adapter`       the adapter's class
``treering.sandbox_providers`` the provider                            a `SandboxProvider`, or its class
=============================  ======================================  ===================================

Built-in ones win over entry points of the same name. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

from treering.errors import InvalidInput

Group = Literal["engines", "importers", "adapters", "sandbox_providers"]

GROUPS: Final[tuple[Group, ...]] = ("engines", "importers", "adapters", "sandbox_providers")


def plugins(group: Group) -> dict[str, EntryPoint]:
    """Return the entry points of a group by their names."""
    return {each.name: each for each in entry_points(group=f"treering.{group}")}


def load_plugin(group: Group, name: str) -> Any | None:
    """Import what an entry point leads to; ``None`` if no installed package has one of this name."""
    found = plugins(group).get(name)
    if found is None:
        return None
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        package = found.dist.name if found.dist is not None else found.value
        raise InvalidInput(
            f"{name!r} of treering.{group} cannot be loaded from {found.value!r} ({error}); "
            f"reinstall or remove {package}"
        ) from error


def find_adapter(name: str) -> Any:
    """Return the adapter that an installed package adds for a framework: ``find_adapter("crewai")``."""
    found = load_plugin("adapters", name)
    if found is None:
        names = ", ".join(sorted(plugins("adapters"))) or "none is installed"
        raise InvalidInput(
            f"no installed package adds an adapter for {name!r} ({names}); those of treering itself are the "
            "modules of treering.adapters"
        )
    return found
