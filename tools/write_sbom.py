"""Writes a bill of materials (SBOM, CycloneDX in JSON) beside a wheel: dragoman-VERSION.cdx.json.

tools/write_sbom.py DIST   for the wheel and the source archive in this folder

It names what the wheel asks for and what that asks for in turn, in the versions of this
environment, which are those of constraints.txt: "required", or "optional" if only an extra asks for
it. What is not installed here has no version. The same files and the same environment give the same
bytes: no time is in it, and its serial number follows from the wheel.
"""

from __future__ import annotations

import hashlib
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FOR_DEVELOPERS: Final = ("dev", "docs")
"""The extras that no user installs."""


def main() -> None:
    """Write the file; a line says which."""
    (folder,) = map(Path, sys.argv[1:])
    (wheel,) = folder.glob("dragoman-*.whl")
    (archive,) = folder.glob("dragoman-*.tar.gz")
    path = folder / f"dragoman-{wheel.name.split('-')[1]}.cdx.json"
    path.write_text(bill_of(wheel, archive) + "\n", encoding="utf-8")
    print(path)


def bill_of(wheel: Path, archive: Path) -> str:
    """The bill of materials as JSON."""
    with ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(content.read(name))
    requirements = metadata.requires_dist or []
    extras = {extra for extra in metadata.provides_extra or [] if extra not in FOR_DEVELOPERS}
    required = _closure(requirements, {""})
    optional = _closure(requirements, {"", *extras})
    known = {name: _component(name, required=name in required) for name in sorted(optional)}
    own = Component(
        name=metadata.name,
        version=str(metadata.version),
        type=ComponentType.LIBRARY,
        bom_ref=metadata.name,
        purl=PackageURL("pypi", name=metadata.name, version=str(metadata.version)),
        licenses=[LicenseFactory().make_from_string(str(metadata.license_expression))],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION, url=XsUri(file.name), hashes=[_hash(file)]
            )
            for file in (wheel, archive)
        ],
    )
    bom = Bom(
        components=known.values(), serial_number=uuid.uuid5(uuid.NAMESPACE_OID, _sha256(wheel))
    )
    bom.metadata.component = own
    bom.metadata.timestamp = None  # type: ignore[assignment]  # optional in CycloneDX
    asked = {name for name in _names(requirements, {"", *extras}) if name != metadata.name}
    bom.register_dependency(own, [known[name] for name in sorted(asked)])
    for name, component in known.items():
        bom.register_dependency(component, [known[one] for one in sorted(optional[name])])
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=1)


def _closure(requirements: list[Requirement], extras: set[str]) -> dict[str, set[str]]:
    """All packages that these need, by name, each with the names that it needs itself."""
    found: dict[str, set[str]] = {}
    waiting = list(_asked(requirements, extras))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == "dragoman":  # its extra "all" asks for the others, which are in `extras`
            continue
        installed = _installed(name)
        lines = (installed.requires or []) if installed else []
        asked = list(_asked([Requirement(line) for line in lines], {"", *requirement.extras}))
        new = {canonicalize_name(one.name) for one in asked}
        if not new <= found.get(name, set()) or name not in found:
            found[name] = found.get(name, set()) | new
            waiting += asked
    return found


def _names(requirements: list[Requirement], extras: set[str]) -> set[str]:
    return {str(canonicalize_name(one.name)) for one in _asked(requirements, extras)}


def _asked(requirements: list[Requirement], extras: set[str]) -> Iterator[Requirement]:
    """Those that hold here with one of these extras; "" is none."""
    for one in requirements:
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            yield one


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _component(name: str, *, required: bool) -> Component:
    installed = _installed(name)
    # Without the name of a build, such as +cpu, which the registry does not have.
    version = Version(installed.version).public if installed else None
    # A licence in full belongs into no list; an expression or a name does.
    values = dict(installed.metadata.json) if installed else {}
    licence = str(values.get("license_expression") or values.get("license") or "")
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=name,
        scope=ComponentScope.REQUIRED if required else ComponentScope.OPTIONAL,
        purl=PackageURL("pypi", name=name, version=version),
        licenses=[LicenseFactory().make_from_string(licence)] if 0 < len(licence) < 100 else (),
    )


def _hash(file: Path) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=_sha256(file))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
