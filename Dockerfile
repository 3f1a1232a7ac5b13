# A server for a team, or the base image of an agent:
#
#   docker build -t treering .
#   docker run -p 127.0.0.1:8787:8787 -e TREERING_API_KEY=... -v data:/data treering
#
# Data is kept in the volume /data, or wherever TREERING_URL points (postgresql://...).

FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --prefix=/installed '.[server,postgres,s3,prices,schedules,mcp]'

FROM python:3.13-slim
COPY --from=build /installed /usr/local
RUN useradd --create-home --uid 1000 treering && mkdir /data && chown treering: /data
USER treering
ENV TREERING_URL=/data
VOLUME /data
EXPOSE 8787
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8787/healthz', timeout=3)"]
ENTRYPOINT ["treering"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8787"]
