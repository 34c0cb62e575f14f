-- app.db, left by a run of sinks.Fanout([sinks.SQLite("app.db", "clicks"), sinks.SQLite("app.db", "audit")]) that died when
-- the first sink had batch 7 and the second had not. Its keys were hashes of the sinks' repr.
CREATE TABLE headrace_history (
        pipeline TEXT NOT NULL, number INTEGER NOT NULL, change TEXT NOT NULL, PRIMARY KEY (pipeline, number));
CREATE TABLE headrace_offsets (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, "partition" INTEGER NOT NULL, next_offset BIGINT NOT NULL,
        PRIMARY KEY (pipeline, topic, "partition"));
INSERT INTO "headrace_offsets" VALUES('p.2fef15f2','clicks',0,5);
INSERT INTO "headrace_offsets" VALUES('p.47780a29','clicks',0,3);
CREATE TABLE headrace_pipelines (
        pipeline TEXT PRIMARY KEY, last_batch BIGINT NOT NULL, topic_ids TEXT NOT NULL, pending TEXT, run TEXT);
INSERT INTO "headrace_pipelines" VALUES('p.2fef15f2',7,'{"clicks": "id-1"}',NULL,NULL);
INSERT INTO "headrace_pipelines" VALUES('p.47780a29',6,'{"clicks": "id-1"}',NULL,NULL);
