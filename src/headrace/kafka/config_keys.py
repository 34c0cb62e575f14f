"""The names of client settings: those of Java's consumers and producers, and librdkafka's connection settings."""

from __future__ import annotations

# A test compares them with the loaded client.
_JAVA = """
allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset bootstrap.servers
check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms default.api.timeout.ms enable.auto.commit
enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level
key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes session.timeout.ms
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type value.deserializer
"""
_PRODUCER = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys retries transaction.timeout.ms
transaction.two.phase.commit.enable transactional.id value.serializer
"""
_LIBRDKAFKA = """
enable.ssl.certificate.verification https.ca.location https.ca.pem sasl.kerberos.keytab sasl.kerberos.principal
sasl.mechanisms sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope sasl.password sasl.username
socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
socket.timeout.ms ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.crl.location
ssl.curves.list ssl.key.location ssl.key.pem ssl.providers ssl.sigalgs.list
"""

JAVA = frozenset(_JAVA.split())
JAVA_PRODUCER = frozenset(_PRODUCER.split())
"""Producer settings that consumers do not have."""
LIBRDKAFKA = frozenset(_LIBRDKAFKA.split())
EVERY = JAVA | LIBRDKAFKA
