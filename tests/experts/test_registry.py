from __future__ import annotations

import copy
import hashlib
import json

import pytest

from builder.errors import PackageError
from builder.experts import ExpertPackage, ExpertRegistry, TransformersCausalLM
from tests.experts.tiny_models import package_for


@pytest.fixture
def packages(model: TransformersCausalLM) -> list[ExpertPackage]:
    return [package_for(model, name, (f"{name}:0",), seed=index) for index, name in enumerate("abc")]


def active(registry: ExpertRegistry) -> list[str]:
    return [package.name for package in registry.snapshot().packages]


def test_packages_stand_in_the_order_of_their_first_installation(packages: list[ExpertPackage]) -> None:
    registry = ExpertRegistry()
    assert [registry.install(package) for package in packages] == [0, 1, 2]
    registry.unload(packages[0].identity)
    registry.unload(packages[1].identity)
    assert active(registry) == ["c"]
    assert registry.install(packages[1]) == 1
    assert registry.install(packages[0]) == 0
    assert active(registry) == ["a", "b", "c"]


def test_the_hash_is_that_of_the_identities_in_order(packages: list[ExpertPackage]) -> None:
    registry = ExpertRegistry()
    for package in packages[:2]:
        registry.install(package)
    text = json.dumps(
        {
            "format": "saguaro-expert-registry",
            "packages": [packages[0].identity, packages[1].identity],
            "version": 1,
        },
        separators=(",", ":"),
    )
    assert registry.snapshot().registry_sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_reinsertion_restores_the_hash_and_another_order_has_another(packages: list[ExpertPackage]) -> None:
    registry, other = ExpertRegistry(), ExpertRegistry()
    for package in packages:
        registry.install(package)
    before = registry.snapshot().registry_sha256
    registry.unload(packages[1].identity)
    assert registry.snapshot().registry_sha256 != before
    registry.install(packages[1])
    assert registry.snapshot().registry_sha256 == before
    for package in reversed(packages):
        other.install(package)
    assert other.snapshot().registry_sha256 != before


def test_a_package_is_installed_once_and_unloaded_once(packages: list[ExpertPackage]) -> None:
    registry = ExpertRegistry()
    registry.install(packages[0])
    with pytest.raises(PackageError) as caught:
        registry.install(packages[0])
    assert caught.value.code == "package_installed"
    registry.unload(packages[0].identity)
    for identity in (packages[0].identity, "f" * 64):
        with pytest.raises(PackageError) as caught:
            registry.unload(identity)
        assert caught.value.code == "package_not_installed"
    assert registry.slots == {packages[0].identity: 0}


def test_a_copied_registry_is_its_own(packages: list[ExpertPackage]) -> None:
    registry = ExpertRegistry()
    registry.install(packages[0])
    twin = copy.copy(registry)
    assert active(twin) == ["a"]
