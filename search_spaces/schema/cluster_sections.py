"""The `cluster` section of a search file and of a cluster file: the machine and its links."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster, MeasuredSpeed
from search_spaces.hardware.links import NIC_EFFICIENCY, Fabric, LinkDomain, Links
from search_spaces.schema import presets
from search_spaces.schema.sections import PresetSection, resolved_path
from search_spaces.schema.validation import Section, folder_from_context, validate
from search_spaces.schema.yaml_document import read_document


class LinkDomainSection(Section):
    """Ranks connected by one kind of link."""

    name: str = Field(min_length=1, max_length=40, description="Name of the domain, for example die-pair, node, nvl72.")
    num_ranks: int = Field(ge=2, le=100_000, description="Number of consecutive ranks in the domain.")
    bus_gb_per_s: float = Field(
        gt=0, description="Bus bandwidth of an all-reduce over all of them, per rank, as nccl-tests prints it."
    )
    latency_us: float = Field(ge=0, description="Time of an all-reduce of a few bytes.")
    p2p_gb_per_s: float | None = Field(
        default=None, gt=0, description="Highest bandwidth between two of its ranks. Default: bus_gb_per_s."
    )
    gather_gb_per_s: float | None = Field(
        default=None, gt=0, description="Bus bandwidth of an all-gather or a reduce-scatter. Default: bus_gb_per_s."
    )


class BandwidthSection(Section):
    """Bandwidth that a number of nodes reach together."""

    num_nodes: int = Field(ge=2, le=100_000, description="Number of whole nodes.")
    bus_gb_per_s: float = Field(gt=0, description="Bus bandwidth of an all-reduce over all their ranks, per rank.")
    gather_gb_per_s: float | None = Field(
        default=None, gt=0, description="Bus bandwidth of an all-gather or a reduce-scatter. Default: bus_gb_per_s."
    )


class FabricSection(Section):
    """Network between the nodes."""

    nic_gb_per_s: float = Field(gt=0, description="Bandwidth of all NICs of a node together, one direction.")
    latency_us: float = Field(ge=0, description="Time of one small message between nodes.")
    by_nodes: list[BandwidthSection] = Field(
        default=[],
        description="Measured bandwidth by number of nodes, in rising order. Default:"
        f" {NIC_EFFICIENCY} of nic_gb_per_s, for any number.",
    )
    p2p_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Highest bandwidth of one pair of ranks between nodes. Default: that of the NICs.",
    )
    kind: Literal["infiniband", "efa"] = Field(
        default="infiniband", description="Kind of network; RoCE and Slingshot count as InfiniBand."
    )
    all_to_all_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        description="What each rank sends to other nodes in an all-to-all over all ranks. Default: the share of the"
        " NICs that the kind of network usually reaches.",
    )

    @model_validator(mode="after")
    def _validate_fabric(self) -> Self:
        self.fabric()
        return self

    def fabric(self) -> Fabric:
        """The fabric; InputError where a number of nodes occurs twice or out of order."""
        by_nodes = tuple((point.num_nodes, point.bus_gb_per_s) for point in self.by_nodes)
        gathers = tuple((point.num_nodes, point.gather_gb_per_s or point.bus_gb_per_s) for point in self.by_nodes)
        differ = gathers if gathers != by_nodes else ()
        bounds = self.nic_gb_per_s, self.latency_us, by_nodes, self.p2p_gb_per_s, differ
        return Fabric(*bounds, self.kind, self.all_to_all_gb_per_s)


class LinksSection(Section):
    """Bandwidths and latencies between ranks; docs/clusters.md says how to measure them."""

    domains: list[LinkDomainSection] = Field(
        default=[],
        description="From inner to outer, each a multiple of the one before, the last one a node or several.",
    )
    fabric: FabricSection | None = Field(
        default=None, description="Network between the nodes; required with more nodes than the last domain has."
    )

    @model_validator(mode="after")
    def _validate_links(self) -> Self:
        self.links()
        return self

    def links(self) -> Links:
        """The links; InputError where domains do not nest."""
        domains = tuple(LinkDomain(**domain.model_dump()) for domain in self.domains)
        return Links(domains, None if self.fabric is None else self.fabric.fabric())


class MatmulSection(Section):
    """TFLOP/s (1e12) of a training's GEMMs, by precision."""

    fp32: float | None = Field(default=None, gt=0, description="fp32 products, without TF32.")
    bf16: float | None = Field(default=None, gt=0, description="bf16 products.")
    fp16: float | None = Field(default=None, gt=0, description="fp16 products.")


class MeasuredSection(Section):
    """Speed that each rank reached while all of them ran at once; `parlay calibrate` writes it (docs/calibrate.md)."""

    matmul_tflops: MatmulSection = Field(default=MatmulSection(), description="GEMMs of a training.")
    memory_gb_per_s: float | None = Field(
        default=None, gt=0, description="Memory traffic of a large copy, reads and writes."
    )
    host_gb_per_s: float | None = Field(
        default=None, gt=0, description="Between device and host memory, the slower direction."
    )

    def measured(self) -> MeasuredSpeed:
        products = self.matmul_tflops.model_dump(exclude_none=True)
        return MeasuredSpeed(products, self.memory_gb_per_s, self.host_gb_per_s)


_MAX_GPUS = 1_000_000


class ClusterSection(PresetSection):
    """The machine: the name of a ready-made one, the path of a YAML file with these fields, or the fields."""

    schema_version: Literal["parlay.cluster/1"] = Field(
        default="parlay.cluster/1", alias="schema", description="Version of the file format."
    )
    accelerator: str = Field(description="Accelerator of a rank, for example h100-80gb; cpu for plain processes.")
    gpus_per_node: int = Field(ge=1, le=100_000, description="Accelerators per node; on cpu, ranks per node.")
    num_nodes: int = Field(ge=1, le=100_000, description="Nodes the search may use.")
    links: LinksSection | None = Field(
        default=None,
        description="Bandwidths and latencies. Default: the links of the accelerator's usual node, if any.",
    )
    measured: MeasuredSection | None = Field(
        default=None, description="Measured speed of a rank. Default: the accelerator's data sheet, if any."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name_or_file(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, str):
            return data
        if "/" not in data and not data.endswith((".yaml", ".yml")):
            return presets.preset(presets.CLUSTERS, data).data
        document = read_document(resolved_path(folder_from_context(info), data))
        validate(cls, document)
        return document.data

    @model_validator(mode="after")
    def _validate_cluster(self) -> Self:
        if (count := self.gpus_per_node * self.num_nodes) > _MAX_GPUS:
            raise InputError.of(
                "bounds",
                f"num_nodes {self.num_nodes} x gpus_per_node {self.gpus_per_node} = {count} accelerators",
                rule=f"at most {_MAX_GPUS} accelerators in total",
                fix="set num_nodes to the nodes that the search may use",
                key="num_nodes",
                value=self.num_nodes,
            )
        self.cluster()
        return self

    def cluster(self) -> Cluster:
        """The cluster; InputError for an unknown accelerator, and for links of another kind of node."""
        try:
            accelerator = presets.accelerator_named(self.accelerator)
        except InputError as error:
            raise error.at(key="accelerator") from None
        links = None if self.links is None else self.links.links()
        measured = None if self.measured is None else self.measured.measured()
        return Cluster(accelerator, self.gpus_per_node, self.num_nodes, links, measured)

    @classmethod
    def name_schema(cls) -> str:
        return "A ready-made cluster, or a file's path: " + ", ".join(presets.preset_names(presets.CLUSTERS))
