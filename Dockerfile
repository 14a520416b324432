# recallflow in a container.
#
#   docker build -t recallflow .
#   docker run --rm recallflow                                                  # the demo
#   docker run -v memories:/var/lib/recallflow -p 127.0.0.1:8080:8080 recallflow serve --state-dir engine --create
#   docker run -v memories:/var/lib/recallflow recallflow run --bootstrap-servers kafka:9092 --state-dir engine --create
#
# `run --processes auto` starts one member for each available CPU. For Kubernetes, see deploy/kubernetes.
# Relative paths, such as that of --state-dir, are in the volume.

# The tag moves with Python's patches. To pin it, look up its digest (docker buildx imagetools inspect python:3.12-slim) and
# build with --build-arg BASE=python:3.12-slim@sha256:…
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /source
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv --copies /opt/recallflow
RUN python -m pip install --no-cache-dir --require-hashes -r .ci/uv.txt
ARG EXTRAS=cloudevents,kms,mcp,msk,otel,schema-registry,serve,static
# Install the versions of uv.lock with hashes, then the wheel of this checkout without dependencies.
RUN uv export --quiet --frozen --no-emit-project $(echo "${EXTRAS}" | sed 's/[^,]*/--extra &/g; s/,/ /g') --output-file /requirements.txt
RUN /opt/recallflow/bin/python -m pip install --no-cache-dir --require-hashes -r /requirements.txt
RUN /opt/recallflow/bin/python -m pip install --no-cache-dir --no-deps /wheels/*.whl

FROM ${BASE}
# A numeric user, so that Kubernetes can verify that it is not root.
RUN groupadd --gid 10001 recallflow && useradd --uid 10001 --gid 10001 --home-dir /var/lib/recallflow --create-home recallflow
COPY --from=build /opt/recallflow /opt/recallflow
# A published port only reaches servers that listen on all addresses. Publish it on 127.0.0.1, or require
# credentials. /livez, /readyz and /metrics of `run` and of `serve` are on the same port.
ENV PATH=/opt/recallflow/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RECALLFLOW_RUN_METRICS_HOST=0.0.0.0 \
    RECALLFLOW_RUN_METRICS_PORT=8080 \
    RECALLFLOW_SERVE_HOST=0.0.0.0
USER 10001:10001
WORKDIR /var/lib/recallflow
VOLUME /var/lib/recallflow
EXPOSE 8080
# SIGTERM hands over partitions (docs/how-to/kafka.md): use `docker stop --time 60`.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/livez', timeout=2)"]
ENTRYPOINT ["recallflow"]
CMD ["demo"]
