// SPDX-License-Identifier: Apache-2.0
// Virtual IPUs, and who holds them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "devices/partition.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessera {
namespace {

using Ipus = std::tuple<int, int, int>;  // id of the device, first, count

std::shared_ptr<Lease> acquire_one(const std::string& directory, const std::vector<Ipus>& wanted) {
  std::vector<Device> devices;
  for (const auto& [id, first, count] : wanted) devices.push_back({id, first, count});
  return acquire(open_partition(directory), devices);
}

nb::list holders_of(const std::string& directory) {
  nb::list out;
  for (const Holder& h : holders(open_partition(directory))) {
    // Arguments of a program need not be UTF-8.
    const nb::object command = nb::steal(PyUnicode_DecodeUTF8(
        h.command.data(), static_cast<Py_ssize_t>(h.command.size()), "backslashreplace"));
    out.append(nb::make_tuple(h.ipu, h.pid, h.user, h.seconds, command));
  }
  return out;
}

}  // namespace

void bind_devices(nb::module_& m) {
  nb::class_<Lease>(m, "Lease", "A device that this process holds until it is released.")
      .def_prop_ro("id", [](const Lease& l) { return l.device().id; })
      .def_prop_ro("first", [](const Lease& l) { return l.device().first; })
      .def_prop_ro("count", [](const Lease& l) { return l.device().count; })
      .def("release", &Lease::release)
      .def("check", &Lease::check, "Raises RecoverableError if the device is gone.");
  m.def("number_of_ipus", &number_of_ipus, "Of the machine.");
  m.def("runtime_directory", &runtime_directory, "Where the locks of its IPUs are.");
  m.def(
      "devices",
      [](int ipus) {
        std::vector<Ipus> out;
        for (const Device& d : devices_of(ipus)) out.emplace_back(d.id, d.first, d.count);
        return out;
      },
      "ipus"_a, "The devices (id, first, count) of a machine with so many IPUs.");
  m.def("acquire", &acquire_one, "directory"_a, "wanted"_a,
        "The first of these devices that is free, or None.");
  m.def("holders", &holders_of, "directory"_a,
        "(IPU, process, user, seconds, command) of every IPU that is held.");
  m.def(
      "reset_device",
      [](const std::string& directory, const Ipus& d) {
        reset(open_partition(directory), {std::get<0>(d), std::get<1>(d), std::get<2>(d)});
      },
      "directory"_a, "device"_a);
}

}  // namespace tessera
