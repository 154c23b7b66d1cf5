/* Calls over a socket pair: replies, refusals, ends, limits of time. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/daemon.pb-c.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "tests/unit/unit.h"

enum { QUESTION = 7, WRONG = 8 };

struct pair {
	int client, server;
};

static struct pair open_pair(void)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	return (struct pair){ends[0], ends[1]};
}

static void close_pair(const struct pair *pair)
{
	close(pair->client);
	close(pair->server);
}

static void *serve_one(void *arg)
{
	const struct pair *pair = arg;
	Pbeam__Done reply = PBEAM__DONE__INIT;
	Pbeam__Target *target = NULL;
	struct err err = ERR_INIT;

	if (rpc_receive(pair->server, "the client", QUESTION, &pbeam__target__descriptor, &target, &err) < 0)
		return (void *)"no request";
	reply.value = target->vpid + 1;
	message_free(target);
	return rpc_reply(pair->server, &reply.base, &err) < 0 ? (void *)"no reply" : NULL;
}

static void test_call(void **state)
{
	struct pair pair = open_pair();
	Pbeam__Target target = PBEAM__TARGET__INIT;
	Pbeam__Done *reply = NULL;
	struct err err = ERR_INIT;
	pthread_t server;
	void *problem = NULL;

	target.vpid = 41;
	assert_int_equal(pthread_create(&server, NULL, serve_one, &pair), 0);
	assert_int_equal(rpc_call(pair.client, "the server", QUESTION, &target.base, &pbeam__done__descriptor,
				  &reply, &err),
			 0);
	assert_int_equal(reply->value, 42);
	message_free(reply);
	pthread_join(server, &problem);
	assert_null(problem);
	close_pair(&pair);
}

static void test_refused(void **state)
{
	struct pair pair = open_pair();
	struct err why = ERR_INIT, err = ERR_INIT;
	Pbeam__Done *reply = NULL;

	err_set(&why, -ENOSPC, "the disk is full");
	rpc_refuse(pair.server, &why);
	assert_int_equal(
		rpc_call(pair.client, "the server", QUESTION, NULL, &pbeam__done__descriptor, &reply, &err),
		-ENOSPC);
	assert_null(reply);
	assert_string_equal(err.text, "the disk is full");
	close_pair(&pair);
}

/* A server's own -EPIPE, or a code that is no error, must not be taken for the end of the connection or
 * for success. */
static void test_odd_codes(void **state)
{
	static const int codes[] = {-EPIPE, 0, 5};

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		Pbeam__Failed failed = PBEAM__FAILED__INIT;
		struct err err = ERR_INIT;

		failed.code = codes[i];
		failed.text = (char *)"odd";
		assert_int_equal(rpc_take_failure(&failed, &err), -EIO);
	}
}

static void test_ended(void **state)
{
	struct pair pair = open_pair();
	struct err err = ERR_INIT;

	close(pair.server);
	assert_int_equal(rpc_call(pair.client, "host b", QUESTION, NULL, NULL, NULL, &err), -EPIPE);
	assert_string_equal(err.text, "the connection with host b has ended");
	close(pair.client);
}

static void test_unexpected(void **state)
{
	struct pair pair = open_pair();
	struct err err = ERR_INIT;

	assert_int_equal(frame_send(pair.server, WRONG, NULL, NULL, 0, &err), 0);
	assert_int_equal(rpc_receive(pair.client, "host b", QUESTION, NULL, NULL, &err), -EPROTO);
	assert_non_null(strstr(err.text, "unexpected message 8 from host b"));
	close_pair(&pair);
}

static void test_time_limit(void **state)
{
	struct pair pair = open_pair();
	struct err err = ERR_INIT;

	rpc_set_timeout(pair.client, 50);
	assert_int_equal(rpc_receive(pair.client, "host b", QUESTION, NULL, NULL, &err), -ETIMEDOUT);
	assert_non_null(strstr(err.text, "host b"));
	close_pair(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_call),	   cmocka_unit_test(test_refused),
		cmocka_unit_test(test_odd_codes),  cmocka_unit_test(test_ended),
		cmocka_unit_test(test_unexpected), cmocka_unit_test(test_time_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
