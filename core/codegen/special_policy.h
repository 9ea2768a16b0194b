// SPDX-License-Identifier: Apache-2.0
// How Boost.Math is called: errors are NaN and infinity, as in torch, and double is computed in
// double.
#pragma once

#include <boost/math/policies/policy.hpp>

namespace tessera::special {

namespace policies = boost::math::policies;

using Quiet = policies::policy<
    policies::domain_error<policies::ignore_error>, policies::pole_error<policies::ignore_error>,
    policies::overflow_error<policies::ignore_error>,
    policies::evaluation_error<policies::ignore_error>,
    policies::rounding_error<policies::ignore_error>,
    policies::indeterminate_result_error<policies::ignore_error>, policies::promote_double<false>>;

}  // namespace tessera::special
