"""Settings: where they come from, and one clear line when one of them cannot be."""

from __future__ import annotations

import json
import os

import pytest
from annotated_types import Le

from worker.builtin import Workplace, builtin_tools
from worker.endpoints import Price
from worker.errors import SettingsInvalid
from worker.messages import Usage
from worker.settings import MOST, TOOLS, Settings, load_settings, parse_size
from worker.store import sql


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("CAISSON_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refused(**options):
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512m", 512 << 20),
        ("1g", 1 << 30),
        ("64MiB", 64 << 20),
        ("64MB", 64 << 20),
        ("100", 100),
        ("1.5k", 1536),
        (" 2 GiB ", 2 << 30),
        ("7B", 7),
        (4096, 4096),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "m", "12q", "1gg", "many", "1e9"])
def test_what_is_no_size_is_refused_with_an_example(text):
    assert "512m" in refused(memory=text)


def test_later_layers_win_and_origins_are_known(monkeypatch, tmp_path):
    (tmp_path / "caisson.toml").write_text('memory = "1g"\npids = 100\ncpus = 2\n')
    monkeypatch.setenv("CAISSON_PIDS", "90")
    monkeypatch.setenv("CAISSON_CPUS", "3")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    loaded = load_settings({"cpus": 4.0, "image": None})
    settings = loaded.settings
    assert (settings.memory, settings.pids, settings.cpus) == (1 << 30, 90, 4.0)
    origins = {name: origin for name, _, origin in loaded.rows()}
    assert origins["memory"] == "caisson.toml"
    assert origins["pids"] == "CAISSON_PIDS"
    assert origins["cpus"] == "command line"
    assert origins["base_url"] == "OPENAI_BASE_URL"
    assert origins["image"] == "default"


def test_our_own_variable_wins_over_that_of_openai(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one")
    monkeypatch.setenv("CAISSON_BASE_URL", "http://two")
    assert load_settings().settings.base_url == "http://two"


def test_a_config_file_can_be_named(monkeypatch, tmp_path):
    (tmp_path / "other.toml").write_text('model = "m"\n[prices.m]\ninput = 1\noutput = 2\n')
    monkeypatch.setenv("CAISSON_CONFIG", str(tmp_path / "other.toml"))
    settings = load_settings().settings
    assert settings.model == "m"
    price = settings.prices["m"]
    assert price.of(Usage(input_tokens=1_000_000, output_tokens=500_000)) == 2.0


def test_lists_are_words_with_commas_in_the_environment(monkeypatch):
    monkeypatch.setenv("CAISSON_TOOLS", "shell, calculate")
    assert load_settings().settings.tools == ("shell", "calculate")


def test_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    loaded = load_settings()
    assert loaded.settings.api_key.get_secret_value() == "sk-very-secret"
    assert "secret" not in str(list(loaded.rows()))
    assert "secret" not in repr(loaded)


def test_programs_are_given_values_of_their_own_kind(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("CAISSON_PRICES", '{"m": {"input": 1, "output": 2}}')
    options = {"memory": "1g", "cpus": "0.5", "tools": "shell", "data_dir": "."}
    rows = list(load_settings(options).rows())
    values = {name: value for name, value, _ in json.loads(json.dumps(rows))}
    assert values["memory"] == 2**30
    assert values["cpus"] == 0.5
    assert values["send_reasoning"] is False
    assert values["runtime"] is None
    assert values["tools"] == ["shell"]
    assert values["preload"] == []
    assert values["data_dir"] == "."
    assert values["prices"] == {"m": {"input": 1.0, "output": 2.0}}
    assert values["api_key"] == "**********"
    assert values.keys() == Settings.model_fields.keys()


def test_an_unknown_variable_is_an_error_with_the_nearest_name(monkeypatch):
    monkeypatch.setenv("CAISSON_MEMORI", "1g")
    text = refused()
    assert "CAISSON_MEMORI" in text
    assert "did you mean CAISSON_MEMORY?" in text


def test_an_unknown_key_of_the_file_is_an_error_with_the_nearest_name(tmp_path):
    (tmp_path / "caisson.toml").write_text("max_step = 3\n")
    text = refused()
    assert "max_step (caisson.toml)" in text
    assert "did you mean max_steps?" in text


def test_a_file_that_is_no_toml_names_the_file_and_the_line(tmp_path):
    (tmp_path / "caisson.toml").write_text('memory = "1g"\nboom\n')
    text = refused()
    assert "caisson.toml" in text
    assert "line 2" in text


def test_a_named_file_that_is_missing_names_the_variable(monkeypatch):
    monkeypatch.setenv("CAISSON_CONFIG", "/nowhere.toml")
    assert "/nowhere.toml" in (text := refused())
    assert "CAISSON_CONFIG" in text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("memory", -5),
        ("memory", "1k"),
        ("cpus", 0),
        ("cpus", "inf"),
        ("cpus", "nan"),
        ("pids", -1),
        ("pids", "many"),
        ("call_timeout_s", 0),
        ("call_timeout_s", -3),
        ("job_timeout_s", "soon"),
        ("max_steps", 0),
        ("max_tokens", -1),
        ("driver", "podman"),
        ("workspace_size", "10"),
        ("network", ""),
        ("max_cost", -0.5),
        ("loop_stop", 1),
    ],
)
def test_an_impossible_value_names_setting_value_origin_and_remedy(option, value, monkeypatch):
    typed = {"call_timeout_s": "--timeout", "job_timeout_s": "--timeout"}
    name = typed.get(option, "--" + option.replace("_", "-"))
    assert refused(**{option: value}).startswith(f"{name} {value if value != '' else repr('')}: ")
    if value == "":
        return  # a variable without a value is no value
    monkeypatch.setenv(variable := f"CAISSON_{option.upper()}", str(value))
    text = refused()
    assert text.startswith(f"{option} = {str(value)!r} ({variable}): ")
    assert f"set {variable} or {option} in caisson.toml" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"job_timeout_s": "-1"}, "--timeout -1: must be greater than 0"),
        ({"memory": "1m"}, "--memory 1m: must be at least 64 MiB"),
        ({"memory": "65t"}, "--memory 65t: must be at most 1024 GiB"),
        ({"max_steps": "many"}, "--max-steps many: is not a whole number"),
        ({"cpus": "x"}, "--cpus x: is not a number"),
        ({"cpus": "nan"}, "--cpus nan: is not a finite number"),
    ],
)
def test_an_option_is_named_as_it_was_typed(options, says):
    assert refused(**options) == says


def bounded():
    """Each setting that has a most, and that most."""
    for name, field in Settings.model_fields.items():
        for bound in field.metadata:
            if isinstance(bound, Le):
                yield name, bound.le


@pytest.mark.parametrize(("name", "most"), list(bounded()))
def test_what_is_above_the_most_is_refused_and_the_most_is_kept_as_asked(name, most):
    told = refused(**{name: most + 1})
    assert ": must be at most " in told
    assert "\n" not in told
    if name != "call_timeout_s":  # which must not be above another one
        assert getattr(load_settings({name: most}).settings, name) == most


def test_a_store_counts_with_the_most_memory_as_it_is():
    assert MOST <= sql._MOST


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("memory = 1", "memory = 1 (caisson.toml): must be at least 64 MiB; set CAISSON_MEMORY"),
        ("memory = 1", "(default 512 MiB)"),
        ("cpus = true", "cpus = True (caisson.toml): is not a number"),
        ("pids = 8.5", "pids = 8.5 (caisson.toml): is not a whole number"),
        ("stream = 'x'", "is neither true nor false"),
        ("tool_protocol = 'xml'", "must be 'auto', 'native' or 'text'"),
        ('driver = "podman"', "must be 'docker' or 'process'"),
        ("image = 1", "image = 1 (caisson.toml): is not text"),
        ("tools = 3", "tools = 3 (caisson.toml): is not a list"),
        ("[prices.m]\ninput = -1\noutput = 1", "prices.m.input = -1 (caisson.toml): must be at"),
        ("[prices.m]\ninput = true\noutput = 1", "prices.m.input = True (caisson.toml): is not a"),
        ("[prices.m]\ninput = 1", "prices.m.output (caisson.toml): is missing"),
        ("[prices]\nm = 1", "prices.m = 1 (caisson.toml): is not a table"),
        ('tools = ["shel"]', "(caisson.toml): there is no tool 'shel'; did you mean shell?"),
        ('tools = ["python"]', "did you mean python_interpreter?"),
        ('preload = ["no such"]', "'no such' is not the name of a module"),
        ('data_dir = "/dev/null/x"', "(caisson.toml): /dev/null is not a folder"),
    ],
)
def test_a_value_of_the_file_is_refused_in_plain_words(tmp_path, line, says):
    (tmp_path / "caisson.toml").write_text(line + "\n")
    assert says in refused()


def test_no_name_is_proposed_that_is_not_like_the_unknown_one(monkeypatch):
    monkeypatch.setenv("CAISSON_FOO", "1")
    assert refused() == "CAISSON_FOO: no such setting"


def test_a_file_that_is_no_text_is_called_so(tmp_path):
    (tmp_path / "caisson.toml").write_bytes(b"image = '\xff'\n")
    assert refused() == "cannot read caisson.toml: it is not UTF-8 text"


def test_the_names_of_the_tools_are_those_of_the_tools():
    place = Workplace(lambda: None, 1.0)
    assert [tool.name for tool in builtin_tools(place, TOOLS)] == list(TOOLS)


def test_people_are_shown_sizes_with_a_unit_and_what_an_unset_value_comes_to(monkeypatch):
    monkeypatch.setenv("CAISSON_PRICES", '{"m": {"input": 0.4, "output": 2}}')
    rows = {name: value for name, value, _ in load_settings({"memory": "1536m"}).said_rows()}
    assert list(rows) == list(Settings.model_fields)
    assert all(rows.values())
    assert (rows["memory"], rows["max_tokens"]) == ("1536 MiB", "none")
    assert rows["workspace_size"] == "576 MiB (3/8 of memory)"
    assert rows["pool_memory"] == "none (96 MiB for each slot and one more)"
    assert rows["prices"] == "m (input 0.4, output 2)"
    assert (rows["stream"], rows["job_timeout_s"]) == ("false", "3600")
    assert rows["tools"].startswith("python_interpreter, shell, ")


def test_an_impossible_secret_is_not_shown(monkeypatch):
    assert "['x']" not in refused(api_key=["x"])


def test_settings_that_do_not_agree_are_refused():
    assert "loop_nudge" in refused(loop_nudge=5)
    unpriced = refused(max_cost=1.0, model="m.1")
    assert unpriced.endswith('set [prices."m.1"] in caisson.toml or CAISSON_PRICES')
    assert Settings(max_cost=1.0, model="m", prices={"m": Price(input=1, output=1)})


def test_a_variable_without_a_value_is_no_value(monkeypatch):
    monkeypatch.setenv("CAISSON_MEMORY", "")
    assert load_settings().settings.memory == 512 << 20


def test_a_comma_alone_empties_a_list_of_the_file(monkeypatch, tmp_path):
    (tmp_path / "caisson.toml").write_text('fallbacks = ["near"]\n')
    monkeypatch.setenv("CAISSON_FALLBACKS", "")
    assert load_settings().settings.fallbacks == ("near",)
    monkeypatch.setenv("CAISSON_FALLBACKS", ",")
    assert load_settings().settings.fallbacks == ()


def test_prices_that_are_no_json_are_one_line(monkeypatch):
    for text in ("{", "x"):
        monkeypatch.setenv("CAISSON_PRICES", text)
        assert refused().startswith(f"CAISSON_PRICES = {text!r}: is not JSON; write it like ")


def test_every_limit_reaches_the_spec_of_the_sandbox():
    settings = Settings(
        memory="1g",
        cpus=2,
        pids=99,
        call_timeout_s=7,
        max_life_s=100,
        network="lab",
        runtime="runsc",
        workspace_size="32m",
        tmp_size="16m",
        preload="pandas",
        image="i:1",
    )
    spec = settings.spec("j")
    limits = spec.limits
    assert (limits.memory_bytes, limits.cpus, limits.pids) == (1 << 30, 2.0, 99)
    assert (limits.timeout_s, limits.max_life_s) == (7.0, 100.0)
    assert (limits.workspace_size_bytes, limits.tmp_size_bytes) == (32 << 20, 16 << 20)
    assert (spec.network, spec.runtime, spec.preload) == ("lab", "runsc", ("pandas",))
    assert (spec.image, spec.job) == ("i:1", "j")


def test_every_budget_reaches_the_job():
    given = {
        "max_steps": 3,
        "max_working_s": 5.0,
        "max_tokens": 6,
        "max_tool_calls": 7,
        "max_cost": 8.0,
    }
    settings = Settings(job_timeout_s=4.0, **given)
    assert settings.budget().model_dump() == {**given, "timeout_s": 4.0}
    assert Settings(loop_nudge=3).loop_limits().nudge == 3


def test_a_container_outlives_its_job_unless_told_otherwise():
    assert Settings(job_timeout_s=10_000.0).limits().max_life_s > 10_000.0
    assert Settings(max_life_s=60.0).limits().max_life_s == 60.0
    long = Settings(call_timeout_s=9000.0, max_call_timeout_s=9000.0)
    assert long.limits().max_life_s > 9000.0


def test_times_that_do_not_agree_are_named():
    text = refused(call_timeout_s=400)
    assert "call_timeout_s (400)" in text
    assert "max_call_timeout_s (300)" in text
    assert "max_life_s (20)" in refused(max_life_s=20)


def test_a_command_may_have_defaults_of_its_own(monkeypatch):
    loaded = load_settings({"call_timeout_s": 400}, {"max_call_timeout_s": 500.0})
    assert loaded.settings.max_call_timeout_s == 500.0
    assert "max_call_timeout_s" not in loaded.origins
    monkeypatch.setenv("CAISSON_MAX_CALL_TIMEOUT_S", "450")
    loaded = load_settings({}, {"max_call_timeout_s": 500.0})
    assert loaded.settings.max_call_timeout_s == 450.0


# ---- models


ELSEWHERE = """
model = "far"
max_output_tokens = 900

[models.far]
model = "big-1"
base_url = "https://far.example/v1"
api_key_env = "FAR_KEY"
context_tokens = 9000

[models.near]
temperature = 0.5
"""


@pytest.fixture
def elsewhere(tmp_path):
    (tmp_path / "caisson.toml").write_text(ELSEWHERE)


@pytest.mark.usefixtures("elsewhere")
def test_a_model_of_the_table_has_its_own_values_and_else_the_plain_ones(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-plain-one")
    monkeypatch.setenv("FAR_KEY", "sk-far-one")
    settings = load_settings().settings
    far, near, other = (settings.choice(name) for name in ("far", "near", "other"))
    assert (far.model, far.base_url, far.context_tokens) == (
        "big-1",
        "https://far.example/v1",
        9000,
    )
    assert far.api_key.get_secret_value() == "sk-far-one"
    assert (far.max_output_tokens, near.max_output_tokens) == (900, 900)
    assert (near.model, near.temperature, near.base_url) == ("near", 0.5, None)
    assert near.api_key.get_secret_value() == "sk-plain-one"
    assert (other.model, other.temperature) == ("other", None)


@pytest.mark.usefixtures("elsewhere")
def test_no_address_is_sent_the_key_of_another(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-plain-one")
    far = load_settings().settings.choice("far")
    assert far.api_key is None
    assert (far.key_name, far.url_name) == ("FAR_KEY", "models.far.base_url")
    assert (far.model_name, far.protocol_name) == ("models.far.model", "CAISSON_TOOL_PROTOCOL")


@pytest.mark.usefixtures("elsewhere")
def test_a_key_may_be_in_a_file(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("sk-of-the-file\n")
    monkeypatch.setenv("FAR_KEY_FILE", str(tmp_path / "key"))
    assert load_settings().settings.choice("far").api_key.get_secret_value() == "sk-of-the-file"
    monkeypatch.setenv("FAR_KEY_FILE", str(tmp_path / "none"))
    assert refused().startswith("FAR_KEY_FILE = ")


@pytest.mark.usefixtures("elsewhere")
def test_keys_of_the_table_are_shown_nowhere_and_go_with_no_job(monkeypatch):
    monkeypatch.setenv("FAR_KEY", "sk-far-one")
    loaded = load_settings()
    shown = [repr(loaded), *map(str, loaded.rows()), *map(str, loaded.said_rows())]
    shown += [
        str(loaded.chosen()),
        str(loaded.settings.settled()),
        repr(loaded.settings.choice("far")),
    ]
    assert "sk-far" not in "".join(shown)
    assert "models" not in loaded.chosen()
    assert loaded.chosen()["model"] == "far"
    again = loaded.settings.overlaid({"max_steps": 3})
    assert again.choice("far").api_key.get_secret_value() == "sk-far-one"
    with pytest.raises(SettingsInvalid, match="models is no setting that a job may bring"):
        loaded.settings.overlaid({"models": {}})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('base_url = "far.example/v1"', "models.m.base_url = *** (caisson.toml): is no http(s)"),
        ("temperature = 3", "models.m.temperature = 3 (caisson.toml): must be at most 2"),
        ("temperature = true", "models.m.temperature = True (caisson.toml): is not a number"),
        ("context_tokens = 5", "models.m.context_tokens = 5 (caisson.toml): must be at least 1024"),
        ("max_concurrent = 0", "models.m.max_concurrent = 0 (caisson.toml): must be at least 1"),
        ('tool_protocol = "xml"', "must be 'auto', 'native' or 'text'"),
        ('api_kee = "sk-secret"', "models.m.api_kee (caisson.toml): no such key; did you mean"),
        ('base_ulr = "sk-secret"', "no such key; did you mean base_url?"),
        ('zzz = "sk-secret"', "no such key; there are model, base_url, api_key, "),
        ('api_key_env = "sk-secret"', "models.m.api_key_env = *** (caisson.toml): is no name of a"),
        ('api_key_env = "gsk_AbcSecret1"', "the key itself would be api_key"),
        ('base_url = "https://h/v1/chat/completions"', "which is added to it; leave that out"),
        ('base_url = "https://h/v1?key=sk-secret"', "has a ? or a #"),
        ('api_key = ["sk-secret"]', "models.m.api_key = *** (caisson.toml): is not text"),
        ('api_key = "sk-secret"\napi_key_env = "X"', "leave one of them out"),
        ('model = ""', "models.m.model = '' (caisson.toml): is empty"),
    ],
)
def test_a_wrong_value_of_a_model_is_named_without_its_secrets(tmp_path, table, says):
    (tmp_path / "caisson.toml").write_text(f"[models.m]\n{table}\n")
    text = refused()
    assert says in text
    assert "secret" not in text.lower()


def test_a_wrong_key_of_a_price_is_told_those_that_there_are(tmp_path):
    (tmp_path / "caisson.toml").write_text("[prices.m]\ninput = 1\noutput = 1\ncached = 0.1\n")
    assert refused() == "prices.m.cached (caisson.toml): no such key; there are input, output"


@pytest.mark.parametrize(
    "text", ['{"m": "sk-secret"}', '["sk-secret"]', '{"m": sk-secret}', '"sk-secret"']
)
def test_models_of_a_variable_are_refused_without_being_shown(monkeypatch, text):
    monkeypatch.setenv("CAISSON_MODELS", text)
    told = refused()
    assert "secret" not in told
    assert "models" in told.lower()


def test_models_may_come_from_a_variable(monkeypatch):
    monkeypatch.setenv("CAISSON_MODELS", '{"m": {"model": "n", "api_key": "k"}}')
    monkeypatch.setenv("CAISSON_FALLBACKS", "m, o")
    settings = load_settings({"model": "p"}).settings
    assert settings.choice("m").model == "n"
    assert settings.asked == ("p", "m", "o")


def test_a_limit_of_cost_needs_the_price_of_every_model_that_may_be_asked():
    price = {"m": Price(input=1, output=1)}
    for role in ({"fallbacks": "n"}, {"planner_model": "n"}, {"summariser_model": "n"}):
        assert "needs a price for 'n'" in refused(max_cost=1.0, model="m", prices=price, **role)
    entry = {"e": {"model": "m"}}  # a price may be that of the model's name at its endpoint
    assert Settings(max_cost=1.0, model="e", prices=price, models=entry).choice("e").price


def test_a_job_brings_names_of_models_and_the_worker_has_their_endpoints():
    own = Settings(models={"far": {"base_url": "http://far/v1", "api_key": "k"}})
    got = own.overlaid({"model": "far", "fallbacks": ["near"], "tool_protocol": "text"})
    assert got.choice(got.model).base_url == "http://far/v1"
    assert got.fallbacks == ("near",)
