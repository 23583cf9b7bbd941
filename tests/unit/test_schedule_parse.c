/* The schedule reader: every token of every torch version, and one clear line for everything else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pool/schedule.h"

static struct rp_schedule parse(const char *text) {
  struct rp_schedule s;
  struct rp_schedule_error error = {0};
  rp_status status = rp_schedule_parse(text, strlen(text), &s, &error);
  if (status) print_error("'%s' at %zu,%zu: %s\n", error.token, error.row, error.column, error.message);
  assert_int_equal(status, RP_OK);
  return s;
}

static void assert_action(const struct rp_schedule *s, int32_t rank, size_t index, enum rp_action_kind kind,
                          int32_t stage, int32_t microbatch, uint32_t group) {
  assert_true(index < s->rank[rank].count);
  const struct rp_action *a = &s->rank[rank].actions[index];
  assert_int_equal(a->kind, kind);
  assert_int_equal(a->stage, stage);
  assert_int_equal(a->microbatch, microbatch);
  assert_int_equal(a->group, group);
}

static void test_every_token(void **state) {
  (void)state;
  struct rp_schedule s =
      parse("2F0,2B0,2I1,2W1,2SEND_F3,2RECV_F4,2SEND_B5,2RECV_B6,0UNSHARD,0RESHARD,0REDUCE_GRAD,"
            "2WAIT_SEND_F3,2WAIT_SEND_B5,2WAIT_REDUCE_GRAD,(0F3;7B1)OVERLAP_F_B");
  static const enum rp_action_kind kinds[] = {
      RP_ACTION_FORWARD,     RP_ACTION_BACKWARD,        RP_ACTION_BACKWARD_INPUT, RP_ACTION_BACKWARD_WEIGHT,
      RP_ACTION_SEND_F,      RP_ACTION_RECV_F,          RP_ACTION_SEND_B,         RP_ACTION_RECV_B,
      RP_ACTION_UNSHARD,     RP_ACTION_RESHARD,         RP_ACTION_REDUCE_GRAD,    RP_ACTION_WAIT_SEND_F,
      RP_ACTION_WAIT_SEND_B, RP_ACTION_WAIT_REDUCE_GRAD};
  static const int32_t microbatches[] = {0, 0, 1, 1, 3, 4, 5, 6, -1, -1, -1, 3, 5, -1};
  for (size_t i = 0; i < 14; i++)
    assert_action(&s, 0, i, kinds[i],
                  kinds[i] >= RP_ACTION_UNSHARD && kinds[i] <= RP_ACTION_REDUCE_GRAD ? 0 : 2, microbatches[i],
                  0);
  assert_action(&s, 0, 14, RP_ACTION_FORWARD, 0, 3, 1);
  assert_action(&s, 0, 15, RP_ACTION_BACKWARD, 7, 1, 1);
  assert_int_equal(s.rank[0].count, 16);
  assert_true(s.lowered);
  assert_int_equal(s.stages, 8);
  assert_int_equal(s.microbatches, 7);
  assert_int_equal(s.ranks, 1);
  rp_schedule_fini(&s);
}

static void test_compute_only(void **state) {
  (void)state;
  /* Bubbles, blanks, CRLF, quotes, a missing last line end and two compounds side by side. */
  struct rp_schedule s = parse("0F0,,\"0F1\", 0B0 ,(0F2;0B1)OVERLAP_F_B,( 0F3 ; 0B2 )OVERLAP_F_B,,0B3,\r\n"
                               ",1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3");
  assert_false(s.lowered);
  assert_int_equal(s.ranks, 2);
  assert_int_equal(s.rank[0].count, 8);
  assert_int_equal(s.rank[1].count, 8);
  assert_action(&s, 0, 3, RP_ACTION_FORWARD, 0, 2, 1);
  assert_action(&s, 0, 5, RP_ACTION_FORWARD, 0, 3, 2);
  assert_int_equal(s.stage_rank[1], 1);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  assert_int_equal(rp_schedule_lower(&s, NULL), RP_OK);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  rp_schedule_fini(&s);
}

static void test_blank_row_is_a_rank(void **state) {
  (void)state;
  struct rp_schedule s = parse("0F0,0B0\n\n1F0,1B0\n");
  assert_int_equal(s.ranks, 3);
  assert_int_equal(s.rank[1].count, 0);
  assert_int_equal(s.stage_rank[1], 2);
  rp_schedule_fini(&s);
}

/* 2.5 wrote B for the input half where a W follows; later trees wrote BW for the whole backward. */
static void test_old_backward_names(void **state) {
  (void)state;
  struct rp_schedule s = parse("0F0,0F1,0B0,0W0,0B1");
  assert_action(&s, 0, 2, RP_ACTION_BACKWARD_INPUT, 0, 0, 0);
  assert_action(&s, 0, 3, RP_ACTION_BACKWARD_WEIGHT, 0, 0, 0);
  assert_action(&s, 0, 4, RP_ACTION_BACKWARD, 0, 1, 0);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  rp_schedule_fini(&s);
  s = parse("0F0,0F1,0B0,0W0,0BW1");
  assert_action(&s, 0, 2, RP_ACTION_BACKWARD_INPUT, 0, 0, 0);
  assert_action(&s, 0, 4, RP_ACTION_BACKWARD, 0, 1, 0);
  assert_int_equal(rp_schedule_check(&s, NULL), RP_OK);
  rp_schedule_fini(&s);
}

static void test_print_is_read_back(void **state) {
  (void)state;
  static const char text[] = "0UNSHARD,0F0,0SEND_F0,(0F1;0F2)OVERLAP_F_B,0SEND_F1\r\n\r\n1RECV_F0,1F0\r\n";
  struct rp_schedule s = parse(text);
  char *printed;
  size_t length;
  assert_int_equal(rp_schedule_print(&s, &printed, &length), RP_OK);
  assert_string_equal(printed, text);
  assert_int_equal(length, strlen(text));
  free(printed);
  rp_schedule_fini(&s);
}

/* Whole schedules through text, so that the grammar and the generators agree. */
static void test_generated_round_trip(void **state) {
  (void)state;
  for (int32_t chunks = 1; chunks <= 3; chunks++) {
    struct rp_schedule a, b;
    char *first, *second;
    size_t length;
    assert_int_equal(rp_schedule_generate("interleaved_1f1b", 3, chunks, 6, &a, NULL), RP_OK);
    assert_int_equal(rp_schedule_print(&a, &first, &length), RP_OK);
    b = parse(first);
    assert_int_equal(rp_schedule_check(&b, NULL), RP_OK);
    assert_int_equal(b.stages, a.stages);
    assert_int_equal(b.microbatches, a.microbatches);
    assert_int_equal(rp_schedule_print(&b, &second, &length), RP_OK);
    assert_string_equal(first, second);
    free(first);
    free(second);
    rp_schedule_fini(&a);
    rp_schedule_fini(&b);
  }
}

/* --- refusals --- */

struct refusal {
  const char *text;
  size_t row, column;
  const char *token, *says;
};

#define NOWHERE SIZE_MAX

static const struct refusal syntax[] = {
    {"", 0, 0, "", "empty"},
    {"\n\n", NOWHERE, NOWHERE, "", "no actions"},
    {",,,\n", NOWHERE, NOWHERE, "", "no actions"},
    {"0UNSHARD\n", NOWHERE, NOWHERE, "", "no compute actions"},
    {"\xef\xbb\xbf"
     "0F0",
     0, 0, "", "byte order mark"},
    {"\xff\xfe"
     "0F0",
     0, 0, "", "UTF-16"},
    {"0F0,\x7f"
     "ELF",
     0, 1, "\\x7fELF", "not a schedule file"},
    {"0F0,0F\xc3\xa9", 0, 1, "0F\\xc3\\xa9", "byte 0xc3"},
    {"F0", 0, 0, "F0", "number of its stage"},
    {"-1F0", 0, 0, "-1F0", "number of its stage"},
    {"0F0\n1F0,x", 1, 1, "x", "number of its stage"},
    {"0", 0, 0, "0", "type of the action is missing"},
    {"00", 0, 0, "00", "type of the action is missing"},
    {"0f0", 0, 0, "0f0", "type of the action is missing"},
    {"0X0", 0, 0, "0X0", "no action is called 'X'"},
    {"0FF0", 0, 0, "0FF0", "no action is called 'FF'"},
    {"0BACKWARD0", 0, 0, "0BACKWARD0", "no action is called 'BACKWARD'"},
    {"0RECV_0", 0, 0, "0RECV_0", "needs its direction"},
    {"0SEND0", 0, 0, "0SEND0", "needs its direction"},
    {"0F", 0, 0, "0F", "needs a microbatch"},
    {"0RECV_F", 0, 0, "0RECV_F", "needs a microbatch"},
    {"0F0,0UNSHARD3", 0, 1, "0UNSHARD3", "takes no microbatch"},
    {"0REDUCE_GRAD1", 0, 0, "0REDUCE_GRAD1", "takes no microbatch"},
    {"0F0junk", 0, 0, "0F0junk", "behind the action"},
    {"0F-1", 0, 0, "0F-1", "without sign"},
    {"0F0.5", 0, 0, "0F0.5", "without sign"},
    {"1SEND_F3_1RECV_B0", 0, 0, "1SEND_F3_1RECV_B0", "two actions in one cell"},
    {"0F0 0F1", 0, 0, "0F0 0F1", "two actions in one cell"},
    {"0F0;0F1", 0, 0, "0F0;0F1", "behind the action"},
    {"99999F0", 0, 0, "99999F0", "stage number is above"},
    {"0F99999999999999999999", 0, 0, "0F99999999999999999999", "microbatch number is above"},
    {"0OVERLAP_F_B1", 0, 0, "0OVERLAP_F_B1", "stands behind its actions"},
    {"OVERLAP_F_B", 0, 0, "OVERLAP_F_B", "number of its stage"},
    {"()OVERLAP_F_B", 0, 0, "()OVERLAP_F_B", "empty"},
    {"(0F0;)OVERLAP_F_B", 0, 0, "(0F0;)OVERLAP_F_B", "missing between"},
    {"(;0F0)OVERLAP_F_B", 0, 0, "(;0F0)OVERLAP_F_B", "missing between"},
    {"(0F0;1B0", 0, 0, "(0F0;1B0", "closing ')'"},
    {"(0F0;1B0)", 0, 0, "(0F0;1B0)", "ends with OVERLAP_F_B"},
    {"(0F0;1B0)OVERLAP_F_B1", 0, 0, "(0F0;1B0)OVERLAP_F_B1", "ends with OVERLAP_F_B"},
    {"((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B", 0, 0, "((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B", "nested"},
    {"(0F0;1RECV_B0)OVERLAP_F_B", 0, 0, "1RECV_B0", "only F, B, I and W"},
    {"(0F0;0F1;0F2;0F3;0F4;0F5;0F6;0F7;0F8;0F9;0F10;0F11;0F12;0F13;0F14;0F15;0F16)OVERLAP_F_B", 0, 0, NULL,
     "more than 16"},
    {"\"0F0", 0, 0, "\"0F0", "closing quote"},
    {"\"0F0\"x,0F1", 0, 0, "\"0F0\"x,0F1", "behind the closing quote"},
    {"0F0,0SEND_F0,\r\n1RECV_F0,1F0", 0, 2, "", "empty cell"},
    {"0F0,0SEND_F0\r\n1RECV_F0,,1F0", 1, 1, "", "empty cell"},
    {"rank,action\n", 0, 0, "rank", "number of its stage"},
    {"{\"format\": \"recvpool-plan\"}", 0, 0, "{\"format\": \"recvpool-plan\"}", "number of its stage"},
};

/* Parses, lowers if need be, and checks; fills the error of the first refusal. */
static rp_status judge(const char *text, struct rp_schedule_error *error) {
  struct rp_schedule s;
  rp_status status = rp_schedule_parse(text, strlen(text), &s, error);
  if (status) return status;
  status = rp_schedule_check(&s, error);
  if (!status) status = rp_schedule_lower(&s, error);
  if (!status) status = rp_schedule_check(&s, error);
  rp_schedule_fini(&s);
  return status;
}

static void assert_refused(const struct refusal *r, rp_status expected) {
  struct rp_schedule_error error = {0};
  rp_status status = judge(r->text, &error);
  if (status != expected || !strstr(error.message, r->says) ||
      (r->token && strcmp(error.token, r->token) != 0) || error.row != r->row || error.column != r->column)
    print_error("%s\n  gave %d '%s' at %zu,%zu: %s\n", r->text, status, error.token, error.row, error.column,
                error.message);
  assert_int_equal(status, expected);
  assert_non_null(strstr(error.message, r->says));
  if (r->token) assert_string_equal(error.token, r->token);
  assert_int_equal(error.row, r->row);
  assert_int_equal(error.column, r->column);
  assert_null(strchr(error.message, '\n'));
  assert_int_equal(judge(r->text, NULL), expected); /* without anywhere to write the error */
}

static void test_syntax_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(syntax) / sizeof(syntax[0]); i++)
    assert_refused(&syntax[i], RP_ERROR_SYNTAX);
}

static const struct refusal broken[] = {
    {"0F0,0B0,0F0", 0, 2, "0F0", "twice"},
    {"0F0,0B0,0B0", 0, 2, "0B0", "twice"},
    {"0B0,0F0", 0, 0, "0B0", "without its forward"},
    {"0F0,0I0,0F1,0B1", 0, NOWHERE, "0W0", "weight part"},
    {"0F0,0W0,0I0", 0, 1, "0W0", "without its input part"},
    {"0F0,0B0,0I0,0W0", 0, 2, "0I0", "keep one"},
    {"0F0,0F1,0B0", 0, NOWHERE, "0B1", "backward is missing"},
    {"0F0,0F2,0B0,0B2", 0, NOWHERE, "0F1", "forward is missing"},
    {"0F0,1B0,1F0,0B0", 0, 1, "1B0", "without its forward"},
    {"0F0,0B0\n0F1,0B1", 1, 0, "0F1", "belongs to rank 0"},
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0", 1, NOWHERE, "1SEND_B0", "send is missing"},
    {"0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 0, NOWHERE, "0SEND_F0", "send is missing"},
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", 1, NOWHERE, "1RECV_F0", "receive is missing"},
    {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 0, NOWHERE, "0RECV_B0", "receive is missing"},
    {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 0, 0, "0SEND_F0", "before its forward"},
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0", 1, 2, "1SEND_B0", "before its backward"},
    {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0", 1, 1, "1RECV_F0", "after its forward"},
    {"0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0", 0, 3, "0RECV_B0", "after its backward"},
    {"0RECV_F0,0F0,0B0", 0, NOWHERE, "0RECV_F0", "first stage"},
    {"0F0,0B0,0SEND_F0", 0, NOWHERE, "0SEND_F0", "last stage"},
    {"0F0,0SEND_F0,1F0,1B0,0B0", 0, NOWHERE, "0SEND_F0", "hand over locally"},
    {"0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1RECV_F0,1F0,1F1", 1, 0, "1RECV_F1", "pairs transfers in order"},
    /* two ranks that wait for each other */
    {"2F0,0F0,0B0,2B0\n1F0,1B0", 0, NOWHERE, "2F0", "cyclic"},
    {"2RECV_F0,2F0,0F0,0SEND_F0,2B0,2SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0", 0, 1,
     "2F0", "cyclic"},
    {"0F0,0WAIT_SEND_F0,0B0", 0, 1, "0WAIT_SEND_F0", "not before it"},
    {"9999F9999,0F0", NOWHERE, NOWHERE, "", "only 2 actions"},
};

static void test_schedule_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
    assert_refused(&broken[i], RP_ERROR_SCHEDULE);
}

/* Two stages of rank 1 receive from rank 0: out of order between the stages is fine with a communicator for
 * each. */
static void test_one_channel(void **state) {
  (void)state;
  static const char text[] = "0F0,0SEND_F0,2RECV_F0,2F0,2SEND_F0,0F1,0SEND_F1,2RECV_F1,2F1,2SEND_F1\n"
                             "1RECV_F0,1F0,1SEND_F0,1RECV_F1,3RECV_F0,3F0,1F1,1SEND_F1,3RECV_F1,3F1";
  struct rp_schedule_error error = {0};
  struct rp_schedule s = parse(text);
  assert_int_equal(rp_schedule_check(&s, &error), RP_OK);
  assert_int_equal(rp_schedule_check_one_channel(&s, &error), RP_ERROR_SCHEDULE);
  assert_string_equal(error.token, "1RECV_F1");
  assert_int_equal(error.row, 1);
  assert_int_equal(error.column, 3);
  rp_schedule_fini(&s);
  assert_int_equal(rp_schedule_generate("interleaved_1f1b", 2, 3, 4, &s, NULL), RP_OK);
  assert_int_equal(rp_schedule_check_one_channel(&s, &error), RP_OK);
  rp_schedule_fini(&s);
}

static void test_forward_only_is_accepted(void **state) {
  (void)state;
  assert_int_equal(judge("0F0,0F1\n1F0,1F1", NULL), RP_OK);
}

/* A line of any length is read in linear time and bounded memory, whatever is in it. */
static void test_long_line(void **state) {
  (void)state;
  size_t length = (size_t)1 << 24;
  char *text = malloc(length);
  assert_non_null(text);
  struct rp_schedule s;
  struct rp_schedule_error error;
  memset(text, '7', length);
  assert_int_equal(rp_schedule_parse(text, length, &s, &error), RP_ERROR_SYNTAX);
  assert_non_null(strstr(error.message, "stage number is above"));
  assert_int_equal(strlen(error.token), 60);
  memset(text, ',', length);
  assert_int_equal(rp_schedule_parse(text, length, &s, &error), RP_ERROR_SYNTAX);
  memset(text, '(', length);
  assert_int_equal(rp_schedule_parse(text, length, &s, &error), RP_ERROR_SYNTAX);
  memset(text, '\n', length);
  assert_int_equal(rp_schedule_parse(text, length, &s, &error), RP_ERROR_SYNTAX);
  assert_non_null(strstr(error.message, "rows"));
  memset(text, 0, length);
  assert_int_equal(rp_schedule_parse(text, length, &s, &error), RP_ERROR_SYNTAX);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_token),
      cmocka_unit_test(test_compute_only),
      cmocka_unit_test(test_blank_row_is_a_rank),
      cmocka_unit_test(test_old_backward_names),
      cmocka_unit_test(test_print_is_read_back),
      cmocka_unit_test(test_generated_round_trip),
      cmocka_unit_test(test_syntax_refusals),
      cmocka_unit_test(test_schedule_refusals),
      cmocka_unit_test(test_forward_only_is_accepted),
      cmocka_unit_test(test_one_channel),
      cmocka_unit_test(test_long_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
