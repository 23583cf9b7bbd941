/* The configuration table: what each variable takes, what it refuses, and that nonsense never changes a
 * default. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config.h"

extern char **environ;

static void bytes_are_parsed_exactly(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t bytes;
  } good[] = {
      {"0", 0},
      {"65536", 65536},
      {"65536B", 65536},
      {"64KiB", 64ull << 10},
      {"436MiB", 436ull << 20},
      {"1.5GiB", 3ull << 29},
      {"10MB", 10000000},
      {"2TiB", 2ull << 40},
      {"0.5KiB", 512},
      {"18446744073709551615", UINT64_MAX},
  };
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    uint64_t bytes = 7;
    assert_int_equal(rp_parse_bytes(good[i].text, &bytes), RP_OK);
    assert_true(bytes == good[i].bytes);
  }
}

static void bytes_refuse_nonsense(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    " ",
                                    "KiB",
                                    "-1",
                                    "+1",
                                    "1 KiB",
                                    "1kib",
                                    "64K",
                                    "1.5",
                                    "1.",
                                    ".5MiB",
                                    "1e6",
                                    "0x10",
                                    "64KiBx",
                                    "1..5MB",
                                    "18446744073709551616",
                                    "16777216TiB",
                                    "nan",
                                    "99999999999999999999999GiB"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    uint64_t bytes = 7;
    assert_int_equal(rp_parse_bytes(bad[i], &bytes), RP_ERROR_INVALID);
    assert_true(bytes == 7);
  }
  uint64_t bytes = 7;
  assert_int_equal(rp_parse_bytes(NULL, &bytes), RP_ERROR_INVALID);
}

static void good_values_are_taken(void **state) {
  (void)state;
  struct rp_config config;
  char message[128];
  rp_config_defaults(&config);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_MODE", "off", message, sizeof message), RP_OK);
  assert_int_equal(config.mode, RP_MODE_OFF);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_MODE", "observe", message, sizeof message), RP_OK);
  assert_int_equal(config.mode, RP_MODE_OBSERVE);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_INTERVAL", "0.05", message, sizeof message), RP_OK);
  assert_true(config.interval_seconds > 0.049 && config.interval_seconds < 0.051);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_INTERVAL", "3600", message, sizeof message), RP_OK);
  assert_true(config.interval_seconds == 3600);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_MIN_BYTES", "1MiB", message, sizeof message), RP_OK);
  assert_true(config.min_bytes == 1 << 20);
  assert_true(config.headroom_bytes == 0);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_HEADROOM", "3MiB", message, sizeof message), RP_OK);
  assert_true(config.headroom_bytes == 3 << 20);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_SLACK", "0", message, sizeof message), RP_OK);
  assert_int_equal(config.slack, 0);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_SLACK", "1024", message, sizeof message), RP_OK);
  assert_int_equal(config.slack, 1024);
  assert_false(config.slack_auto);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_SLACK", "auto", message, sizeof message), RP_OK);
  assert_true(config.slack_auto);
  assert_int_equal(config.slack, 2);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_SLACK", "3", message, sizeof message), RP_OK);
  assert_false(config.slack_auto);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_CUPTI", "off", message, sizeof message), RP_OK);
  assert_int_equal(config.cupti, RP_CUPTI_OFF);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_VERBOSE", "1", message, sizeof message), RP_OK);
  assert_true(config.verbose);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_REPORT_DIR", "/a b", message, sizeof message), RP_OK);
  assert_string_equal(config.report_dir, "/a b");
}

static void good_values_for_enforce_are_taken(void **state) {
  (void)state;
  struct rp_config config;
  rp_config_defaults(&config);
  assert_int_equal(config.plan_rank, -1);
  assert_int_equal(config.on_violation, RP_POOL_ON_STALE_FALLBACK);
  assert_true(!config.strict && !config.slots && !config.buffer_bytes && !config.plan_path[0]);
  static const struct {
    const char *variable, *value;
  } good[] = {
      {"RECVPOOL_MODE", "enforce"},
      {"RECVPOOL_PLAN", "/a plan.json"},
      {"RECVPOOL_PLAN_RANK", "0"},
      {"RECVPOOL_BUFFER_BYTES", "436MiB"},
      {"RECVPOOL_SLOTS", "1"},
      {"RECVPOOL_ON_VIOLATION", "report"},
      {"RECVPOOL_ON_VIOLATION", "abort"},
      {"RECVPOOL_STRICT", "1"},
      {"RECVPOOL_CUPTI", "learn"},
      {"RECVPOOL_RUN", "1a-_."},
      {"RECVPOOL_SLOTS", "65536"},
  };
  char message[128];
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
    assert_int_equal(rp_config_set(&config, good[i].variable, good[i].value, message, sizeof message), RP_OK);
  assert_int_equal(config.mode, RP_MODE_ENFORCE);
  assert_string_equal(rp_mode_name(config.mode), "enforce");
  assert_string_equal(config.plan_path, "/a plan.json");
  assert_int_equal(config.plan_rank, 0);
  assert_true(config.buffer_bytes == 436u << 20);
  assert_int_equal(config.slots, 65536);
  assert_int_equal(config.on_violation, RP_POOL_ON_STALE_ABORT);
  assert_true(config.strict);
  assert_int_equal(config.cupti, RP_CUPTI_LEARN);
}

/* Each set of values, and what is said of it ("" = they can be meant together). */
static void contradictions_are_named(void **state) {
  (void)state;
  static const struct {
    const char *set[4][2];
    const char *message;
  } cases[] = {
      {{{"MODE", "enforce"}}, ""},
      {{{"MODE", "enforce"}, {"PLAN", "/p"}, {"PLAN_RANK", "1"}, {"STRICT", "1"}}, ""},
      {{{"MODE", "enforce"}, {"BUFFER_BYTES", "1MiB"}}, ""},
      {{{"MODE", "enforce"}, {"BUFFER_BYTES", "1MiB"}, {"SLOTS", "3"}}, ""},
      {{{"MODE", "enforce"}, {"CUPTI", "learn"}, {"SLACK", "auto"}, {"ON_VIOLATION", "abort"}}, ""},
      {{{"MODE", "off"}, {"PLAN", "/p"}, {"SLOTS", "3"}}, ""},
      {{{"SLACK", "auto"}}, ""},
      {{{"MODE", "enforce"}, {"PLAN", "/p"}, {"BUFFER_BYTES", "1MiB"}},
       "RECVPOOL_PLAN and RECVPOOL_BUFFER_BYTES"},
      {{{"MODE", "enforce"}, {"PLAN", "/p"}, {"SLOTS", "3"}}, "RECVPOOL_PLAN and RECVPOOL_SLOTS"},
      {{{"MODE", "enforce"}, {"PLAN", "/p"}, {"SLACK", "auto"}}, "RECVPOOL_PLAN and RECVPOOL_SLACK"},
      {{{"MODE", "enforce"}, {"BUFFER_BYTES", "1MiB"}, {"SLOTS", "3"}, {"SLACK", "auto"}},
       "RECVPOOL_SLOTS and RECVPOOL_SLACK"},
      {{{"MODE", "enforce"}, {"SLOTS", "3"}}, "RECVPOOL_SLOTS needs RECVPOOL_BUFFER_BYTES: of which"},
      {{{"MODE", "enforce"}, {"PLAN_RANK", "0"}}, "RECVPOOL_PLAN_RANK needs RECVPOOL_PLAN: a rank"},
      {{{"SLOTS", "3"}}, "RECVPOOL_SLOTS needs RECVPOOL_BUFFER_BYTES and RECVPOOL_MODE enforce: of which"},
      {{{"SLOTS", "3"}, {"BUFFER_BYTES", "1MiB"}}, "RECVPOOL_BUFFER_BYTES needs RECVPOOL_MODE enforce"},
      {{{"PLAN_RANK", "0"}}, "RECVPOOL_PLAN_RANK needs RECVPOOL_PLAN and RECVPOOL_MODE enforce: a rank"},
      {{{"PLAN", "/p"}}, "RECVPOOL_PLAN needs RECVPOOL_MODE enforce"},
      {{{"BUFFER_BYTES", "1"}}, "RECVPOOL_BUFFER_BYTES needs RECVPOOL_MODE enforce"},
      {{{"MODE", "enforce"}, {"BUFFER_BYTES", "63KiB"}},
       "RECVPOOL_BUFFER_BYTES is less than RECVPOOL_MIN_BYTES: such"},
      {{{"MODE", "enforce"}, {"BUFFER_BYTES", "2MiB"}, {"MIN_BYTES", "4MiB"}},
       "RECVPOOL_BUFFER_BYTES is less than RECVPOOL_MIN_BYTES: such"},
      {{{"HEADROOM", "5"}}, "RECVPOOL_HEADROOM needs RECVPOOL_MODE enforce"},
      {{{"STRICT", "1"}}, "RECVPOOL_STRICT needs RECVPOOL_MODE enforce"},
      {{{"ON_VIOLATION", "report"}}, "RECVPOOL_ON_VIOLATION needs RECVPOOL_MODE enforce"},
      {{{"CUPTI", "learn"}}, "RECVPOOL_CUPTI learn needs RECVPOOL_MODE enforce"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct rp_config config;
    char message[256] = "", name[64];
    rp_config_defaults(&config);
    for (size_t j = 0; j < 4 && cases[i].set[j][0]; j++) {
      snprintf(name, sizeof name, "RECVPOOL_%s", cases[i].set[j][0]);
      assert_int_equal(rp_config_set(&config, name, cases[i].set[j][1], message, sizeof message), RP_OK);
    }
    rp_status expected = cases[i].message[0] ? RP_ERROR_INVALID : RP_OK;
    assert_int_equal(rp_config_check(&config, false, message, sizeof message), expected);
    assert_int_equal(strncmp(message, cases[i].message, strlen(cases[i].message)), 0);
    if (expected == RP_OK) assert_string_equal(message, "");
  }
  struct rp_config config;
  char message[256];
  rp_config_defaults(&config);
  config.slots = 3;
  config.mode = RP_MODE_ENFORCE;
  assert_int_equal(rp_config_check(&config, true, message, sizeof message), RP_ERROR_INVALID);
  assert_int_equal(strncmp(message, "--slots needs --buffer-bytes", 28), 0);
}

static void relative_report_dir_is_made_absolute(void **state) {
  (void)state;
  struct rp_config config;
  char message[128], here[2048], expected[4096];
  rp_config_defaults(&config);
  assert_non_null(getcwd(here, sizeof here));
  snprintf(expected, sizeof expected, "%s/reports", here);
  assert_int_equal(rp_config_set(&config, "RECVPOOL_REPORT_DIR", "reports", message, sizeof message), RP_OK);
  assert_string_equal(config.report_dir, expected);
}

static void bad_values_change_nothing(void **state) {
  (void)state;
  char long_path[5000];
  memset(long_path, 'x', sizeof long_path - 1);
  long_path[0] = '/';
  long_path[sizeof long_path - 1] = '\0';
  const struct {
    const char *variable, *value;
  } bad[] = {
      {"RECVPOOL_MODE", ""},
      {"RECVPOOL_MODE", "Observe"},
      {"RECVPOOL_MODE", "enforce!"},
      {"RECVPOOL_PLAN", ""},
      {"RECVPOOL_PLAN", long_path},
      {"RECVPOOL_PLAN_RANK", "-1"},
      {"RECVPOOL_PLAN_RANK", "1.0"},
      {"RECVPOOL_PLAN_RANK", "2147483648"},
      {"RECVPOOL_BUFFER_BYTES", "0"},
      {"RECVPOOL_BUFFER_BYTES", "9223372036854775808"},
      {"RECVPOOL_SLOTS", "0"},
      {"RECVPOOL_SLOTS", "65537"},
      {"RECVPOOL_SLOTS", "3x"},
      {"RECVPOOL_ON_VIOLATION", "ignore"},
      {"RECVPOOL_ON_VIOLATION", ""},
      {"RECVPOOL_STRICT", "yes"},
      {"RECVPOOL_RUN", ""},
      {"RECVPOOL_RUN", "a/b"},
      {"RECVPOOL_RUN", "0123456789012345678901234567890123456789012345678901234567890123"},
      {"RECVPOOL_SLACK", "Auto"},
      {"RECVPOOL_REPORT_DIR", ""},
      {"RECVPOOL_REPORT_DIR", long_path},
      {"RECVPOOL_INTERVAL", ""},
      {"RECVPOOL_INTERVAL", "0"},
      {"RECVPOOL_INTERVAL", "0.049"},
      {"RECVPOOL_INTERVAL", "3601"},
      {"RECVPOOL_INTERVAL", "-5"},
      {"RECVPOOL_INTERVAL", "5s"},
      {"RECVPOOL_INTERVAL", "1e2"},
      {"RECVPOOL_INTERVAL", "inf"},
      {"RECVPOOL_INTERVAL", "nan"},
      {"RECVPOOL_INTERVAL", "5,5"},
      {"RECVPOOL_MIN_BYTES", "0"},
      {"RECVPOOL_MIN_BYTES", "-1"},
      {"RECVPOOL_MIN_BYTES", "lots"},
      {"RECVPOOL_MIN_BYTES", "18446744073709551615"},
      {"RECVPOOL_HEADROOM", "-1"},
      {"RECVPOOL_HEADROOM", "some"},
      {"RECVPOOL_HEADROOM", "9223372036854775808"},
      {"RECVPOOL_SLACK", "-1"},
      {"RECVPOOL_SLACK", "1025"},
      {"RECVPOOL_SLACK", "2.0"},
      {"RECVPOOL_SLACK", "two"},
      {"RECVPOOL_SLACK", "4294967298"},
      {"RECVPOOL_CUPTI", "sometimes"},
      {"RECVPOOL_CUPTI", ""},
      {"RECVPOOL_VERBOSE", "yes"},
      {"RECVPOOL_VERBOSE", "2"},
      {"RECVPOOL_VERBOSE", "01"},
  };
  struct rp_config config, untouched;
  rp_config_defaults(&untouched);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char message[128] = "";
    rp_config_defaults(&config);
    assert_int_equal(rp_config_set(&config, bad[i].variable, bad[i].value, message, sizeof message),
                     RP_ERROR_INVALID);
    assert_memory_equal(&config, &untouched, sizeof config);
    assert_int_equal(strncmp(message, "must be ", 8), 0);
  }
  char message[128] = "";
  assert_int_equal(rp_config_set(&config, "RECVPOOL_NONE", "1", message, sizeof message), RP_ERROR_NOT_FOUND);
}

static void one_warning_line_for_all_nonsense(void **state) {
  (void)state;
  char *saved[] = {"RECVPOOL_MODE=\x1b[31m\nred", "RECVPOOL_INTERVAL=soon", "RECVPOOL_SLACK=3", "HOME=/",
                   "RECVPOOL_MIN_BYTES=\xff\xfe", "RECVPOOL_COLOUR=blue",   "RECVPOOL_",        NULL};
  char **before = environ;
  environ = saved;
  struct rp_config config;
  char warnings[1024];
  rp_config_from_environment(&config, warnings, sizeof warnings);
  char small[10];
  rp_config_from_environment(&config, small, sizeof small);
  environ = before;
  assert_int_equal(config.slack, 3);
  assert_int_equal(config.mode, RP_MODE_OBSERVE);
  assert_true(config.interval_seconds == 5);
  assert_null(strchr(warnings, '\n'));
  assert_null(strchr(warnings, '\x1b'));
  assert_non_null(strstr(warnings, "RECVPOOL_MODE='?[31m?red' must be observe, enforce or off"));
  assert_non_null(strstr(warnings, "RECVPOOL_INTERVAL='soon' must be seconds,"));
  assert_non_null(strstr(warnings, "RECVPOOL_MIN_BYTES='?"
                                   "?' must be"));
  assert_non_null(strstr(warnings, "RECVPOOL_COLOUR is no variable"));
  assert_null(strstr(warnings, "SLACK"));
  assert_int_equal(strlen(small), sizeof small - 1);
}

/* In somebody's job a contradiction is one warning, and the job is observed. */
static void a_contradiction_is_observed(void **state) {
  (void)state;
  char *contradicting[] = {
      "RECVPOOL_MODE=enforce",       "RECVPOOL_PLAN=/p", "RECVPOOL_SLOTS=3",     "RECVPOOL_STRICT=1",
      "RECVPOOL_ON_VIOLATION=abort", "RECVPOOL_SLACK=1", "RECVPOOL_CUPTI=learn", NULL};
  char **before = environ;
  environ = contradicting;
  struct rp_config config, expected;
  char warnings[256];
  rp_config_from_environment(&config, warnings, sizeof warnings);
  environ = before;
  assert_string_equal(warnings,
                      "RECVPOOL_PLAN and RECVPOOL_SLOTS exclude each other: the plan has the slots; the "
                      "job is observed only");
  assert_string_equal(
      config.problem,
      "contradiction: RECVPOOL_PLAN and RECVPOOL_SLOTS exclude each other: the plan has the slots");
  rp_config_defaults(&expected);
  assert_int_equal(config.mode, RP_MODE_OBSERVE);
  assert_int_equal(config.slack, 1);
  assert_string_equal(config.plan_path, "");
  assert_int_equal(config.slots, 0);
  assert_int_equal(config.plan_rank, expected.plan_rank);
  assert_int_equal(config.on_violation, expected.on_violation);
  assert_int_equal(config.cupti, expected.cupti);
  assert_false(config.strict);
  assert_int_equal(rp_config_check(&config, false, warnings, sizeof warnings), RP_OK);
}

static void a_clean_environment_warns_of_nothing(void **state) {
  (void)state;
  char *clean[] = {"XDG_RUNTIME_DIR=/run/user/1", "RECVPOOL_VERBOSE=1", "RECVPOOL_TEST_UNGUARDED=1", NULL};
  char **before = environ;
  environ = clean;
  struct rp_config config;
  char warnings[64] = "left over";
  rp_config_from_environment(&config, warnings, sizeof warnings);
  environ = before;
  assert_string_equal(warnings, "");
  assert_string_equal(config.report_dir, "/run/user/1/recvpool");
  assert_true(config.verbose);
}

static void default_folder_without_runtime_dir(void **state) {
  (void)state;
  char *none[] = {NULL};
  char **before = environ;
  environ = none;
  char dir[256], expected[256];
  rp_config_default_report_dir(dir, sizeof dir);
  environ = before;
  snprintf(expected, sizeof expected, "/tmp/recvpool-%lu", (unsigned long)geteuid());
  assert_string_equal(dir, geteuid() == 0 ? "/run/recvpool" : expected);
}

static void the_table_is_documented(void **state) {
  (void)state;
  size_t count = 0;
  for (const struct rp_config_variable *row; (row = rp_config_variable(count)) != NULL; count++) {
    assert_int_equal(strncmp(row->name, "RECVPOOL_", 9), 0);
    assert_true(row->help[0] && row->values[0] && row->default_text[0]);
  }
  assert_int_equal(count, 15);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_are_parsed_exactly),
      cmocka_unit_test(bytes_refuse_nonsense),
      cmocka_unit_test(good_values_are_taken),
      cmocka_unit_test(good_values_for_enforce_are_taken),
      cmocka_unit_test(contradictions_are_named),
      cmocka_unit_test(relative_report_dir_is_made_absolute),
      cmocka_unit_test(bad_values_change_nothing),
      cmocka_unit_test(one_warning_line_for_all_nonsense),
      cmocka_unit_test(a_contradiction_is_observed),
      cmocka_unit_test(a_clean_environment_warns_of_nothing),
      cmocka_unit_test(default_folder_without_runtime_dir),
      cmocka_unit_test(the_table_is_documented),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
